package paths

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/fixedseed"
	"github.com/lofamo/lofamo/internal/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/checksum"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }

var origin = fault.Origin{Node: "n0", Half: fault.HalfHost}

// place is 10.0.0.N:1, reached by socket N.
func place(n int) Place {
	return Place{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:1", n)), Socket: uint8(n)}
}

// newMachine names sessions 1, 2, 3 and so on, and refuses the empty key.
func newMachine(sessions *uint64) *Machine {
	return New(Config{
		Allowed: []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_CRC32C, lofamov1.Checksum_CHECKSUM_XXHASH64}, Wait: 10 * time.Millisecond,
		Grant: func(r Request) (Grant, error) {
			if len(r.Key) == 0 {
				return Grant{}, errors.New("no key")
			}
			*sessions++
			return Grant{Session: *sessions, Key: []byte{byte(*sessions)}}, nil
		},
	})
}

// TestScenarios plays testdata/*.txt. A line that begins with '>' is the machine's answer to the
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
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		s := &scenario{t: t}
		s.m = newMachine(&s.sessions)
		return golden.Lines(t, text, "> ", func(args []string) ([]string, error) {
			s.lines = nil
			s.command(args)
			return s.lines, nil
		})
	})
}

type scenario struct {
	t        *testing.T
	m        *Machine
	sessions uint64
	now      time.Duration
	wake     time.Time
	lines    []string
}

var start = time.Unix(0, 0)

func (s *scenario) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *scenario) say(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%v ", s.now)+fmt.Sprintf(format, args...))
}

func (s *scenario) command(f []string) {
	at, err := time.ParseDuration(f[0])
	if err != nil {
		s.t.Fatal(err)
	}
	for !s.wake.IsZero() && s.wake.Sub(start) <= at {
		s.now = s.wake.Sub(start)
		s.show("", s.m.Tick(s.wake))
	}
	s.now = at
	now := start.Add(at)
	n := make([]uint64, 3)
	for i, a := range f[2:min(len(f), 5)] {
		n[i] = s.number(a)
	}
	switch f[1] {
	case "req":
		r := Request{Origin: origin, Epoch: fault.Epoch(n[0]), ID: n[1], Key: []byte{1}, From: place(int(n[2]))}
		for _, a := range f[5:] {
			if a == "nokey" {
				r.Key = nil
				continue
			}
			sum, err := checksum.Parse(a)
			if err != nil {
				s.t.Fatal(err)
			}
			r.Offered = append(r.Offered, sum)
		}
		out := s.m.Request(now, r)
		s.show(out.Outcome.String(), out)
	case "ack":
		out := s.m.Ack(origin, fault.Epoch(n[0]), n[1], place(int(n[2])))
		s.show(out.Outcome.String(), out)
	case "proved":
		out := s.m.Proved(origin, n[0], place(int(n[1])))
		s.show(out.Outcome.String(), out)
	case "heard":
		s.show("heard", s.m.Heard(origin, fault.Epoch(n[0])))
	case "reply":
		session, sum := s.m.Reply(origin, fault.Epoch(n[0]), fault.Seq(n[1]))
		s.say("session %d %s", session, checksum.Name(sum))
	case "places":
		s.say("%v, %d sessions", numbers(s.m.Places(origin)), s.m.Sessions())
	case "run":
	default:
		s.t.Fatalf("unknown command %q", f[1])
	}
}

func numbers(list []Place) []uint8 {
	var out []uint8
	for _, p := range list {
		out = append(out, p.Socket)
	}
	return out
}

func (s *scenario) show(what string, out Output) {
	s.wake = out.Wake
	words := []string{}
	if what != "" {
		words = append(words, what)
	}
	for _, send := range out.Sends {
		words = append(words, fmt.Sprintf("rep %d session %d %s to %d", send.Reply.GetId(), send.Reply.GetSession(),
			checksum.Name(send.Reply.GetChecksum()), send.To.Socket))
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

// TestBounds: for any requests, a half has at most MaxPaths sessions, and every granted session is either known or
// reported as ended.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var granted uint64
		m := newMachine(&granted)
		ended := make(map[uint64]bool)
		note := func(out Output) {
			for _, s := range out.Ended {
				if ended[s] {
					t.Fatalf("session %d ended twice", s)
				}
				ended[s] = true
			}
			if n := m.Sessions(); n > MaxPaths || uint64(n+len(ended)) != granted {
				t.Fatalf("%d sessions known and %d ended of %d granted", n, len(ended), granted)
			}
			if n := len(m.waiting.heap); n > MaxPaths*MaxPaths {
				t.Fatalf("%d replies are repeated", n)
			}
			if n := len(m.Places(origin)); n > MaxPaths {
				t.Fatalf("%d places", n)
			}
			checkWaiting(t, m)
		}
		now := start
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			epoch := fault.Epoch(rapid.IntRange(1, 2).Draw(t, "epoch"))
			id := uint64(rapid.IntRange(1, 100).Draw(t, "id"))
			at := place(rapid.IntRange(1, 12).Draw(t, "place"))
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0, 1:
				note(m.Request(now, Request{Origin: origin, Epoch: epoch, ID: id, Key: []byte{1}, From: at}))
			case 2:
				note(m.Ack(origin, epoch, id, at))
			case 3:
				now = now.Add(15 * time.Millisecond)
				note(m.Tick(now))
			}
			if s, _ := m.Session(origin); ended[s] {
				t.Fatalf("session %d is used after its end", s)
			}
		}
	})
}

// checkWaiting compares the queue with a naive list: every end that is neither established nor out of repetitions.
func checkWaiting(t *rapid.T, m *Machine) {
	waits := make(map[*end]bool)
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
	for _, e := range m.halves[origin].ends() {
		if e.state == Established && waits[e] {
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

func (h *half) ends() []*end {
	var out []*end
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
	m := newMachine(&granted)
	for id := uint64(1); id <= MaxPaths; id++ {
		for i := range MaxPaths {
			at := place(int(id)*20 + i)
			m.Request(start, Request{Origin: origin, Epoch: 1, ID: id, Key: []byte{1}, From: at})
			m.Ack(origin, 1, id, at)
		}
	}
	if got := m.Places(origin); len(got) != MaxPaths || got[0] != place(MaxPaths*20) {
		t.Errorf("%d places, the first %v", len(got), got[0])
	}
}

// BenchmarkProved measures the cost of every digest while a whole cluster requests paths.
func BenchmarkProved(b *testing.B) {
	for _, waiting := range []int{1, 10_000} {
		b.Run(strconv.Itoa(waiting), func(b *testing.B) {
			var granted uint64
			m := newMachine(&granted)
			for i := range waiting {
				o := fault.Origin{Node: fault.NodeID(fmt.Sprint("m", i)), Half: fault.HalfHost}
				m.Request(start, Request{Origin: o, Epoch: 1, ID: 1, Key: []byte{1}, From: place(1)})
			}
			m.Request(start, Request{Origin: origin, Epoch: 1, ID: 1, Key: []byte{1}, From: place(1)})
			session := granted
			m.Ack(origin, 1, 1, place(1))
			for b.Loop() {
				m.Proved(origin, session, place(1))
			}
		})
	}
}

func TestNames(t *testing.T) {
	for o := Outcome(1); int(o) < NumOutcomes; o++ {
		if o.String() == "" {
			t.Errorf("outcome %d has no name", o)
		}
	}
	if Outcome(NumOutcomes).String() != "none" || State(0).String() != "NONE" || Requested.String() != "REQUESTED" ||
		Established.String() != "ESTABLISHED" {
		t.Error("names")
	}
}
