package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// who is a process of a node: a half, or the daemon.
type who string

const (
	host   who = "host"
	dnp    who = "dnp"
	daemon who = "run"
)

func (w who) socket() string {
	return map[who]string{host: half.HostInjectSock, dnp: half.DNPInjectSock, daemon: half.RunSocket}[w]
}

func whoOf(h fault.Half) who { return who(h.String()) }

func (w who) half() fault.Half {
	if w == host {
		return fault.HalfHost
	}
	return fault.HalfDNP
}

// pointFault is one failpoint with one action.
type pointFault struct {
	who    who
	point  failpoint.Point
	action failpoint.Action
}

func (p pointFault) String() string { return fmt.Sprintf("%s of %s at %s", p.action, p.who, p.point) }

// atStart reports whether a point is passed only while its process starts, or starts another one.
func (p pointFault) atStart() bool {
	return strings.HasPrefix(string(p.point), "start-") || strings.HasPrefix(string(p.point), "daemon-")
}

// ends reports whether the process cannot continue.
func (p pointFault) ends() bool { return p.action >= failpoint.Hang }

func (p pointFault) hangs() bool { return p.action == failpoint.Hang || p.action == failpoint.Spin }

// restarts reports whether the fault causes the restart of a half.
func (p pointFault) restarts() bool { return p.who == daemon || p.ends() || p.atStart() }

// pointFaults returns all points with all their actions. Those without a restart come first, because a restart shows in
// the map for seconds and delays the next sample. Drop, duplicate and alter apply only to packets and stores.
func pointFaults() []pointFault {
	var out []pointFault
	halves, daemons := failpoint.Points()
	for _, w := range []who{host, dnp, daemon} {
		points := halves
		if w == daemon {
			points = daemons
		}
		for _, p := range points {
			if w == host && strings.HasPrefix(string(p), "link-") || w == dnp && strings.HasPrefix(string(p), "host-") {
				continue
			}
			for a := failpoint.Drop; a <= failpoint.Exit; a++ {
				x := pointFault{w, p, a}
				if a < failpoint.Delay && (x.atStart() || strings.HasPrefix(string(p), "commit-")) {
					continue
				}
				if a < failpoint.Delay && a != failpoint.Drop && p == failpoint.SpoolKeep {
					continue
				}
				out = append(out, x)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b pointFault) int {
		switch {
		case a.restarts() == b.restarts():
			return 0
		case b.restarts():
			return -1
		}
		return 1
	})
	return out
}

// try arms one failpoint.
func (f *field) try(n cluster.NodeInfo, p pointFault) (sample, error) {
	if p.who == daemon {
		return f.tryDaemonPoint(n, p)
	}
	return f.tryPoint(n, p)
}

// tryPoint arms one failpoint of a half and watches the outcome.
func (f *field) tryPoint(n cluster.NodeInfo, p pointFault) (sample, error) {
	s := sample{what: p.String() + " on " + string(n.ID), applied: true, touched: true, harmed: p.ends(), category: pointCategory(p)}
	h := p.who.half()
	before, err := f.beforePoint(n, p)
	if err != nil {
		return s, fmt.Errorf("before %s: %w", s.what, err)
	}
	mark, at := f.Mark(), cluster.Monotonic()
	if err := f.armPoint(n, p, before.PID); err != nil {
		return s, err
	}
	wantTotal := before.Total
	switch {
	case p.atStart() && p.ends():
		wantTotal += 2
	case p.atStart() || p.ends():
		wantTotal++
	}
	hit, err := f.awaitPoint(n, p, h, wantTotal)
	if err != nil {
		return s, err
	}
	if !hit {
		s.applied = false
		return s, nil
	}
	if !p.ends() {
		time.Sleep(200 * time.Millisecond) // a fault in a packet needs time to take effect
	}
	after, err := f.await(n, h, func(r halfcore.RecoveryRecord) bool {
		return r.State == halfcore.Running && r.PID != 0 && r.Total >= wantTotal &&
			(r.Last == nil || r.Last.Serving > 0 || r.Total == before.Total)
	})
	s.healed = err == nil
	if err != nil {
		s.what += ": " + err.Error()
	} else if after.Total > before.Total && after.Last != nil {
		s.found(*after.Last, at)
	}
	if !p.atStart() {
		f.judgePoint(n, p, mark, at, &s)
	}
	return s, nil
}

// found records a restart.
func (s *sample) found(l halfcore.Recovery, at int64) {
	s.ours = byExit
	switch {
	case l.Cause.Kind == halfcore.Hung:
		s.ours = byWatchdog
	case l.Cause.Kind == halfcore.FailedTest:
		s.ours = bySelfTest
	case l.Cause.Memory():
		s.ours = byGuard
	}
	s.detect, s.recover = time.Duration(l.At-at), time.Duration(l.At-at)+l.Serving
}

// beforePoint waits until both halves run, and until every trace of an earlier sample has gone.
func (f *field) beforePoint(n cluster.NodeInfo, p pointFault) (halfcore.RecoveryRecord, error) {
	var of halfcore.RecoveryRecord
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		r, err := f.running(n, h)
		if err != nil {
			return of, err
		}
		if h == p.who.half() {
			of = r
		}
	}
	if p.restarts() {
		return of, nil
	}
	return of, f.rested(n)
}

// armPoint arms a point of a half. For a point that is passed only at a start, it restarts the half.
func (f *field) armPoint(n cluster.NodeInfo, p pointFault, pid int) error {
	o := p.order()
	if !p.atStart() {
		return f.arm(n, p.who, o)
	}
	if err := f.armAtStart(n, p.who, o); err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (p pointFault) order() failpoint.Order {
	return failpoint.Order{Point: p.point, Action: p.action.String(), DelayMS: 60}
}

// judgePoint records both observers' findings on a fault without a restart. Only an entry in the map counts as our
// detection, by a watchdog or a link test. A missing answer is visible to users.
func (f *field) judgePoint(n cluster.NodeInfo, p pointFault, mark int, at int64, s *sample) {
	v := f.noticed(n, mark, at, cluster.Monotonic())
	if p.ends() {
		s.prober = v.any()
		return
	}
	s.prober = v.certain()
	if v.any() && s.ours == "" {
		s.what += ": " + v.String()
	}
	switch {
	case v.mapped == "" || s.ours != "":
	case strings.Contains(v.mapped, "self-test"):
		s.ours = bySelfTest
	default:
		s.ours = byPeer
	}
}

func pointCategory(p pointFault) category {
	switch {
	case p.hangs():
		return catHang
	case p.ends():
		return catCrash
	case p.action == failpoint.Delay:
		return catLatency
	case p.action == failpoint.Corrupt:
		return catMessage
	case strings.HasPrefix(string(p.point), "mail-"):
		return catMailbox
	default:
		return catSend
	}
}

// armAtStart leaves an order for the next start of a process.
func (f *field) armAtStart(n cluster.NodeInfo, w who, o failpoint.Order) error {
	b, err := json.Marshal([]failpoint.Order{o})
	if err != nil {
		return err
	}
	path := filepath.Join(n.StateDir, failpoint.File(string(w)))
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// disarm disarms a point that was not reached, and reports whether the process reached it meanwhile.
func (f *field) disarm(n cluster.NodeInfo, w who) (hit bool, err error) {
	var st struct{ Armed uint64 }
	err = f.ask(n, w, "DELETE", "/failpoint", nil, &st)
	if ended(err) {
		return true, nil
	}
	return st.Armed == 0, err
}

// awaitPoint waits until a point was hit. The process reports that while it can, or has ended.
func (f *field) awaitPoint(n cluster.NodeInfo, p pointFault, h fault.Half, total uint64) (bool, error) {
	if p.atStart() {
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(n.StateDir, failpoint.File(string(p.who)))); errors.Is(err, fs.ErrNotExist) {
				return true, nil
			}
		}
		return false, fmt.Errorf("%s of %s was not started: its failpoints were not taken", p.who, n.ID)
	}
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var st struct{ Armed uint64 }
		if err := f.get(n, p.who, &st); err == nil && st.Armed == 0 {
			return true, nil
		}
		if p.ends() && f.record(n, h).Total >= total {
			return true, nil
		}
	}
	return f.disarm(n, p.who)
}

// get reads the armed points, once.
func (f *field) get(n cluster.NodeInfo, w who, out any) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
	defer cancel()
	return n.Control(ctx, w.socket(), "GET", "/failpoint", nil, out)
}

// failpoints triggers every failpoint of halves and daemon with every action, under report load.
func failpoints(t *testing.T, fields []*field) {
	rounds, stride := 1, 7
	if *full {
		rounds, stride = 17, 1
	}
	faults := pointFaults()
	c, begin := newClass("failpoints", *seed), time.Now()
	c.chances = true
	var mu sync.Mutex
	next, idle := 0, map[string]int{}
	take := func() (pointFault, bool) {
		mu.Lock()
		defer mu.Unlock()
		i := next*stride + int(*seed)%stride
		next++
		return faults[i%len(faults)], i < rounds*len(faults)
	}
	var all sync.WaitGroup
	for _, f := range fields {
		for _, n := range f.nodes {
			all.Go(func() {
				for {
					p, more := take()
					if !more {
						return
					}
					s, err := f.try(n, p)
					mu.Lock()
					if err != nil {
						t.Error(err)
						s.applied = false
					}
					c.add(s)
					if s.ours == byPeer || s.ours == bySelfTest {
						t.Logf("found: %s", s.what)
					}
					if !s.applied {
						idle[fmt.Sprintf("%s of the %s", p.point, p.who)]++
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	c.took = time.Since(begin)
	for _, p := range slices.Sorted(maps.Keys(idle)) {
		c.notes = append(c.notes, fmt.Sprintf("%d times nothing came by %s while it was armed", idle[p], p))
	}
	finish(t, c)
}
