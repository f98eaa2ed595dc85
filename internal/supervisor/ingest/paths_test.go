package ingest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

var pathOrigin = fault.Origin{Node: "n0", Half: fault.HalfHost}

// pathPlaceOf is 10.0.0.N:1, reached by socket N.
func pathPlaceOf(n int) Place {
	return Place{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:1", n)), Socket: uint8(n)}
}

// newTestPathMachine names sessions 1, 2, 3 and so on, and refuses the empty key.
func newTestPathMachine(sessions *uint64) *pathMachine {
	return newPathMachine(pathConfig{
		Allowed: []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_CRC32C, lofamov1.Checksum_CHECKSUM_XXHASH64}, Wait: 10 * time.Millisecond,
		Grant: func(r pathRequest, _ []uint64) (pathGrant, error) {
			if len(r.Key) == 0 {
				return pathGrant{}, errors.New("no key")
			}
			*sessions++
			return pathGrant{Session: *sessions, Key: []byte{byte(*sessions)}}, nil
		},
	})
}

// TestPathScenarios plays testdata/paths/*.txt. A line that begins with '>' is the machine's answer to the
// command before it; '#' begins a comment. Times are since the start, places are numbers. Commands:
//
//	TIME req EPOCH ID PLACE [nokey] [CHECKSUM...]    a request of the half
//	TIME ack EPOCH ID PLACE
//	TIME proved SESSION PLACE                        the half speaks under a session's MAC
//	TIME heard EPOCH                                 anything else that the half has signed
//	TIME reply EPOCH SEQ                             how a datagram is answered
//	TIME places
//	TIME run                                         only lets the time pass
//
// Between commands the machine is ticked at each requested Wake.
func TestPathScenarios(t *testing.T) {
	golden.Files(t, "testdata/paths/*.txt", func(t *testing.T, text string) string {
		s := &pathScenario{t: t}
		s.m = newTestPathMachine(&s.sessions)
		return golden.Lines(t, text, "> ", func(args []string) ([]string, error) {
			s.lines = nil
			s.command(args)
			return s.lines, nil
		})
	})
}

type pathScenario struct {
	t        *testing.T
	m        *pathMachine
	sessions uint64
	now      time.Duration
	wake     time.Time
	lines    []string
}

var pathStart = time.Unix(0, 0)

func (s *pathScenario) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *pathScenario) say(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%v ", s.now)+fmt.Sprintf(format, args...))
}

func (s *pathScenario) command(f []string) {
	at, err := time.ParseDuration(f[0])
	if err != nil {
		s.t.Fatal(err)
	}
	for !s.wake.IsZero() && s.wake.Sub(pathStart) <= at {
		s.now = s.wake.Sub(pathStart)
		s.show("", s.m.Tick(s.wake))
	}
	s.now = at
	now := pathStart.Add(at)
	n := make([]uint64, 3)
	for i, a := range f[2:min(len(f), 5)] {
		n[i] = s.number(a)
	}
	switch f[1] {
	case "req":
		r := pathRequest{Origin: pathOrigin, Epoch: fault.Epoch(n[0]), ID: n[1], Key: []byte{1}, From: pathPlaceOf(int(n[2]))}
		for _, a := range f[5:] {
			if a == "nokey" {
				r.Key = nil
				continue
			}
			sum, err := servicenet.ParseChecksum(a)
			if err != nil {
				s.t.Fatal(err)
			}
			r.Offered = append(r.Offered, sum)
		}
		out := s.m.Request(now, r)
		s.show(out.Outcome.String(), out)
	case "ack":
		out := s.m.Ack(pathOrigin, fault.Epoch(n[0]), n[1], pathPlaceOf(int(n[2])))
		s.show(out.Outcome.String(), out)
	case "proved":
		out := s.m.Proved(pathOrigin, n[0], pathPlaceOf(int(n[1])))
		s.show(out.Outcome.String(), out)
	case "heard":
		s.show("heard", s.m.Heard(pathOrigin, fault.Epoch(n[0])))
	case "reply":
		session, sum := s.m.Reply(pathOrigin, fault.Epoch(n[0]), fault.Seq(n[1]))
		s.say("session %d %s", session, servicenet.ChecksumName(sum))
	case "places":
		s.say("%v, %d sessions", placeNumbers(s.m.Places(pathOrigin)), s.m.Sessions())
	case "run":
	default:
		s.t.Fatalf("unknown command %q", f[1])
	}
}

func placeNumbers(list []Place) []uint8 {
	var out []uint8
	for _, p := range list {
		out = append(out, p.Socket)
	}
	return out
}

func (s *pathScenario) show(what string, out pathOutput) {
	s.wake = out.Wake
	words := []string{}
	if what != "" {
		words = append(words, what)
	}
	for _, send := range out.Sends {
		words = append(words, fmt.Sprintf("rep %d session %d %s to %d", send.Reply.GetId(), send.Reply.GetSession(),
			servicenet.ChecksumName(send.Reply.GetChecksum()), send.To.Socket))
	}
	if out.Established {
		words = append(words, fmt.Sprintf("established at %d", out.Place.Socket))
	}
	if len(out.Ended) > 0 {
		words = append(words, fmt.Sprintf("ended %v", out.Ended))
	}
	if out.Unanswered > 0 {
		words = append(words, fmt.Sprintf("unanswered %d", out.Unanswered))
	}
	if len(words) > 0 {
		s.say("%s", strings.Join(words, ", "))
	}
}

// TestSessionsOfHalfAreBounded: for any requests, a half has at most maxPaths sessions, and every granted session is either known or
// reported as ended.
func TestSessionsOfHalfAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var granted uint64
		m := newTestPathMachine(&granted)
		ended := make(map[uint64]bool)
		note := func(out pathOutput) {
			for _, s := range out.Ended {
				if ended[s] {
					t.Fatalf("session %d ended twice", s)
				}
				ended[s] = true
			}
			if n := m.Sessions(); n > maxPaths || uint64(n+len(ended)) != granted {
				t.Fatalf("%d sessions known and %d ended of %d granted", n, len(ended), granted)
			}
			if n := len(m.waiting.heap); n > maxPaths*maxPaths {
				t.Fatalf("%d replies are repeated", n)
			}
			if n := len(m.Places(pathOrigin)); n > maxPaths {
				t.Fatalf("%d places", n)
			}
			checkWaiting(t, m)
		}
		now := pathStart
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			epoch := fault.Epoch(rapid.IntRange(1, 2).Draw(t, "epoch"))
			id := uint64(rapid.IntRange(1, 100).Draw(t, "id"))
			at := pathPlaceOf(rapid.IntRange(1, 12).Draw(t, "place"))
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0, 1:
				note(m.Request(now, pathRequest{Origin: pathOrigin, Epoch: epoch, ID: id, Key: []byte{1}, From: at}))
			case 2:
				note(m.Ack(pathOrigin, epoch, id, at))
			case 3:
				now = now.Add(15 * time.Millisecond)
				note(m.Tick(now))
			}
			if s, _ := m.Session(pathOrigin); ended[s] {
				t.Fatalf("session %d is used after its end", s)
			}
		}
	})
}

// checkWaiting compares the queue with a naive list: every end that is neither established nor out of repetitions.
func checkWaiting(t *rapid.T, m *pathMachine) {
	waits := make(map[*pathEnd]bool)
	var first time.Time
	for i, e := range m.waiting.heap {
		if e.index != i || !e.waits || waits[e] {
			t.Fatalf("the end at %d is misplaced", i)
		}
		waits[e] = true
		if first.IsZero() || e.due.Before(first) {
			first = e.due
		}
	}
	if !m.waiting.wake().Equal(first) {
		t.Fatalf("wake %v, the first is due at %v", m.waiting.wake(), first)
	}
	known := 0
	for _, e := range m.halves[pathOrigin].ends() {
		if e.state == pathEstablished && waits[e] {
			t.Fatal("an established path's reply is repeated")
		}
		if waits[e] {
			known++
		}
	}
	if known != len(waits) {
		t.Fatalf("%d replies of paths that are gone are repeated", len(waits)-known)
	}
}

func (h *pathHalf) ends() []*pathEnd {
	var out []*pathEnd
	if h != nil {
		for _, e := range h.list {
			out = append(out, e.ends...)
		}
	}
	return out
}

// TestPlacesAreBounded: a recorded exchange that is replayed from many addresses adds no more places than a half
// has interfaces, and the half's own stays first.
func TestPlacesAreBounded(t *testing.T) {
	var granted uint64
	m := newTestPathMachine(&granted)
	for id := uint64(1); id <= maxPaths; id++ {
		for i := range maxPaths {
			at := pathPlaceOf(int(id)*20 + i)
			m.Request(pathStart, pathRequest{Origin: pathOrigin, Epoch: 1, ID: id, Key: []byte{1}, From: at})
			m.Ack(pathOrigin, 1, id, at)
		}
	}
	if got := m.Places(pathOrigin); len(got) != maxPaths || got[0] != pathPlaceOf(maxPaths*20) {
		t.Errorf("%d places, the first %v", len(got), got[0])
	}
}

// BenchmarkProved measures the cost of every digest while a whole cluster requests paths.
func BenchmarkProved(b *testing.B) {
	for _, waiting := range []int{1, 10_000} {
		b.Run(strconv.Itoa(waiting), func(b *testing.B) {
			var granted uint64
			m := newTestPathMachine(&granted)
			for i := range waiting {
				o := fault.Origin{Node: fault.NodeID(fmt.Sprint("m", i)), Half: fault.HalfHost}
				m.Request(pathStart, pathRequest{Origin: o, Epoch: 1, ID: 1, Key: []byte{1}, From: pathPlaceOf(1)})
			}
			m.Request(pathStart, pathRequest{Origin: pathOrigin, Epoch: 1, ID: 1, Key: []byte{1}, From: pathPlaceOf(1)})
			session := granted
			m.Ack(pathOrigin, 1, 1, pathPlaceOf(1))
			for b.Loop() {
				m.Proved(pathOrigin, session, pathPlaceOf(1))
			}
		})
	}
}

func TestEveryPathStateHasName(t *testing.T) {
	for o := pathOutcome(1); int(o) < numPathOutcomes; o++ {
		if o.String() == "" {
			t.Errorf("outcome %d has no name", o)
		}
	}
	if pathOutcome(numPathOutcomes).String() != "none" || pathState(0).String() != "NONE" || pathRequested.String() != "REQUESTED" ||
		pathEstablished.String() != "ESTABLISHED" {
		t.Error("names")
	}
}
