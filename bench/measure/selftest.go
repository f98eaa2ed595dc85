package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	agenthalf "github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// testTick is the interval of a half's timer, for its watchdog; the self-test rides on that.
const testTick = 25 * time.Millisecond

// testMark begins the probes of the direct rail, as in the agent.
var testMark = [...]byte{0, 'L', 'F', 'T'}

// selfTest is the self-test of a Half: of the modules that a report of a host half goes through, and of the register
// path, as the agent has it. It is locked with the Half.
type selfTest struct {
	h       *Half
	m       *selftest.Machine // nil: off; the timer rings all the same
	page    *regfile.File
	dir     string
	waiting chan selftest.Probe
	running bool // not while others are measured
}

func newSelfTest(h *Half, every time.Duration) (*selfTest, error) {
	s := &selfTest{h: h, waiting: make(chan selftest.Probe, 2*selftest.MaxSlots)}
	if every == 0 {
		return s, nil
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "lofamo-bench-registers-"); err != nil {
		return nil, err
	}
	if s.page, err = regfile.Open(filepath.Join(s.dir, "registers"), h.cfg.Origin.Half); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	s.m = halfcore.NewSelfTest(halfcore.SelfTestConfig{Interval: every, IdleAfter: time.Hour, First: uint64(time.Now().UnixNano())},
		[]selftest.ModuleConfig{
			halfcore.LocalModule(selftest.Register), halfcore.LocalModule(selftest.Reports), halfcore.DirectModule(0, "service"),
		}, testTick, time.Now())
	return s, nil
}

func (s *selfTest) close() error {
	if s == nil || s.page == nil {
		return nil
	}
	return errors.Join(s.page.Close(), os.RemoveAll(s.dir))
}

// use comes before a report is sent.
func (s *selfTest) use(now time.Time) {
	if s == nil || s.m == nil || !s.running {
		return
	}
	first := s.m.Use(now, selftest.Module{Kind: selftest.Reports})
	if s.m.Use(now, selftest.Module{Kind: selftest.Direct}) || first {
		s.step(now, selftest.Begin{})
	}
}

func (s *selfTest) step(now time.Time, ev selftest.Event) {
	for _, p := range s.m.Step(now, ev).Probes {
		switch p.Module.Kind {
		case selftest.Register:
			s.step(now, agenthalf.ProbeRegister(s.page, p, p.Data))
		case selftest.Direct:
			sock := s.h.socks[0]
			if sock.Send(sock.LocalAddr(), append(testMark[:], p.Data...)) != nil {
				s.step(now, selftest.Void{Module: p.Module, ID: p.ID})
			}
		default:
			select {
			case s.waiting <- p:
			default:
				s.step(now, selftest.Void{Module: p.Module, ID: p.ID})
			}
		}
	}
}

// takes reports whether a datagram is a returned probe, and processes it.
func (s *selfTest) takes(from netip.AddrPort, b []byte) bool {
	if s == nil || s.m == nil || from != s.h.socks[0].LocalAddr() {
		return false
	}
	data, marked := bytes.CutPrefix(b, testMark[:])
	if marked {
		s.tell(selftest.Returned{Module: selftest.Module{Kind: selftest.Direct}, Data: data})
	}
	return marked
}

func (s *selfTest) tell(ev selftest.Event) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.step(time.Now(), ev)
}

// run is the timer, and carries the probes of the report path.
func (s *selfTest) run(ctx context.Context) {
	tick := time.NewTicker(testTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.h.mu.Lock()
			if s.running && s.m != nil {
				s.step(time.Now(), selftest.Tick{})
			}
			s.h.mu.Unlock()
		case p := <-s.waiting:
			began := time.Now()
			back, err := agenthalf.ProbeReport(s.h.cfg.Origin, p.Data, s.h.cfg.Signer, s.h.cfg.Verifier)
			if err != nil {
				s.tell(selftest.Refused{Module: p.Module, ID: p.ID, Why: err.Error()})
				continue
			}
			s.tell(selftest.Returned{Module: p.Module, Data: back, Took: time.Since(began)})
		}
	}
}

// Tested is a Reliable whose half tests itself.
type Tested struct{ *Reliable }

// NewTested is NewReliable with a half that tests itself so often, while it is running; 0: it does not.
func NewTested(ids Identities, origin fault.Origin, report fault.Report, every time.Duration) (*Tested, error) {
	r, err := newReliable(ids, origin, report, nil, &every)
	if err != nil {
		return nil, err
	}
	return &Tested{r}, nil
}

// Run lets the half's timer do its work, or not.
func (t *Tested) Run(on bool) {
	t.half.mu.Lock()
	defer t.half.mu.Unlock()
	t.half.tests.running = on
	if s := t.half.tests; on && s.m != nil {
		s.step(time.Now(), selftest.Tick{}) // it was not late: it rested
	}
}

// Tests says how many tests there were of all modules, and fails if one of them failed.
func (t *Tested) Tests() (n uint64, err error) {
	t.half.mu.Lock()
	defer t.half.mu.Unlock()
	if t.half.tests.m == nil {
		return 0, nil
	}
	for _, r := range t.half.tests.m.Results(time.Now()) {
		n += r.Tests
		if r.State != selftest.Passed {
			err = errors.Join(err, fmt.Errorf("%s: %s %s", r.Name, r.State, r.Why))
		}
	}
	return n, err
}
