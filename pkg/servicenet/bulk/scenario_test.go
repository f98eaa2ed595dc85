package bulk

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

// TestScenarios plays testdata/*.txt. A line that begins with '>' is an event until the previous command is done; '#'
// begins a comment. Chunks and their pulls are not shown. Commands:
//
//	new BYTES WAY,WAY [gather=TIME] [sum=TIME] [max=BYTES] [transfers=N] [seed=N] [object=NAME]
//	TIME link WAY [loss=P] [dup=P] [delay=TIME] [jitter=TIME] [cut] [up] [nochunks]
//	TIME begin                 the receiver begins
//	TIME restart               the half forgets everything
//	TIME fail WHY              nothing can be gathered from now on
//	TIME badsums N             so many checksums to come are wrong
//	TIME consumer INTERVAL     takes a chunk every so often; 0: as they come
//	TIME stop                  the consumer takes nothing
//	TIME inject WHAT [BYTE]    a chunk packet: replayed, ahead (by BYTE chunks), tampered (at BYTE), truncated (to
//	                           BYTE), foreign, noise
//	TIME cancel
//	TIME run | end             lets time pass; until the outcome at the latest
//	TIME stats | ways
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		s := &scenario{t: t}
		return golden.Lines(t, text, "> ", func(args []string) ([]string, error) {
			s.lines = nil
			err := s.command(args)
			return s.lines, err
		})
	})
}

type scenario struct {
	t     *testing.T
	w     *world
	lines []string
}

func (s *scenario) printf(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%-8v %s", s.w.now.Round(100*time.Microsecond), fmt.Sprintf(format, args...)))
}

func parseWay(name string) Way {
	if name == "direct" {
		return Way{}
	}
	return Way{name}
}

func (s *scenario) create(f []string) error {
	size, err := strconv.Atoi(f[0])
	if err != nil {
		return err
	}
	var ways []Way
	for name := range strings.SplitSeq(f[1], ",") {
		ways = append(ways, parseWay(name))
	}
	seed := uint64(1)
	if i := slices.IndexFunc(f, func(a string) bool { return strings.HasPrefix(a, "seed=") }); i >= 0 {
		if seed, err = strconv.ParseUint(f[i][5:], 10, 64); err != nil {
			return err
		}
	}
	s.w = newWorld(s.t, seed, size, ways...)
	for _, kv := range f[2:] {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "seed":
		case "gather":
			s.w.gather, err = time.ParseDuration(v)
		case "sum":
			s.w.sum, err = time.ParseDuration(v)
		case "max":
			s.w.job.MaxSize, err = strconv.ParseUint(v, 10, 64)
		case "transfers":
			s.w.scfg.Transfers, err = strconv.Atoi(v)
			s.w.restartSender()
		case "object":
			s.w.job.Object = v
		default:
			err = fmt.Errorf("unknown field %q", k)
		}
		if err != nil {
			return err
		}
	}
	s.w.note = s.printf
	return nil
}

func (s *scenario) command(f []string) error {
	if f[0] == "new" {
		return s.create(f[1:])
	}
	at, err := time.ParseDuration(f[0])
	if err != nil {
		return err
	}
	w := s.w
	verb, args := f[1], f[2:]
	w.run(at, verb == "end")
	switch verb {
	case "run", "end":
	case "link":
		return s.link(args)
	case "begin":
		w.begin()
	case "restart":
		w.restartSender()
	case "fail":
		w.failure = strings.Join(args, " ")
	case "badsums":
		w.badSums, err = strconv.Atoi(args[0])
	case "consumer":
		w.interval, err = time.ParseDuration(args[0])
		w.stopped = false
		w.consume()
	case "stop":
		w.stopped = true
	case "inject":
		return s.inject(args)
	case "cancel":
		w.stepReceiver(Cancel{})
	case "stats":
		p := w.r.Progress()
		s.printf("%s: %d of %d bytes, attempt %d, window %d, received %d repeated %d pulls %d changes %d", p.Way, p.Delivered, p.Size,
			p.Attempt, p.Window, p.Received, p.Repeated, p.Pulls, p.Changes)
		s.printf("duplicates %d malformed %d foreign %d forged %d outside %d ignored %d; sender %+v", p.Duplicates, p.Malformed, p.Foreign,
			p.Forged, p.Outside, p.Ignored, w.s.Stats())
	case "ways":
		for _, way := range w.job.Ways {
			s.printf("%s carried %d", way, w.links[way].carried)
		}
	default:
		return fmt.Errorf("unknown command %q", verb)
	}
	return err
}

func (s *scenario) link(f []string) error {
	l := s.w.links[parseWay(f[0])]
	for _, kv := range f[1:] {
		k, v, _ := strings.Cut(kv, "=")
		var err error
		switch k {
		case "loss":
			l.loss, err = strconv.ParseFloat(v, 64)
		case "dup":
			l.dup, err = strconv.ParseFloat(v, 64)
		case "delay":
			l.delay, err = time.ParseDuration(v)
		case "jitter":
			l.jitter, err = time.ParseDuration(v)
		case "cut":
			l.cut = true
		case "up":
			l.cut, l.noChunks = false, false
		case "nochunks":
			l.noChunks = true
		default:
			err = fmt.Errorf("unknown field %q", k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inject gives the receiver an unexpected packet.
func (s *scenario) inject(f []string) error {
	w := s.w
	p := slices.Clone(w.last)
	n := 0
	if len(f) > 1 {
		var err error
		if n, err = strconv.Atoi(f[1]); err != nil {
			return err
		}
	}
	switch f[0] {
	case "replayed":
	case "ahead": // the last chunk that came, under the number n more
		binary.BigEndian.PutUint32(p[indexAt:], binary.BigEndian.Uint32(p[indexAt:])+uint32(n))
	case "tampered":
		binary.BigEndian.PutUint32(p[indexAt:], binary.BigEndian.Uint32(p[indexAt:])+1) // still wanted
		p[n] ^= 1
	case "truncated":
		p = p[:n]
	case "foreign":
		key, err := NewKey(w.private(), w.private().PublicKey().Bytes(), Transfer{9}, self, "s1")
		if err != nil {
			return err
		}
		if p, err = key.Seal(nil, 0, []byte("x")); err != nil {
			return err
		}
	case "noise":
		p = []byte{chunkMark, 1, 2, 3}
	default:
		return fmt.Errorf("unknown packet %q", f[0])
	}
	w.stepReceiver(Arrived{p, w.way})
	return nil
}
