package inject

import (
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

	"github.com/lofamo/lofamo/internal/agent"
	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/localcluster"
	"github.com/lofamo/lofamo/pkg/fault"
)

// who is a process of a node: a half, or the daemon.
type who string

const (
	host   who = "host"
	dnp    who = "dnp"
	daemon who = "run"
)

func (w who) socket() string {
	return map[who]string{host: agent.HostInjectSock, dnp: agent.DNPInjectSock, daemon: agent.RunSocket}[w]
}

func whoOf(h fault.Half) who { return who(h.String()) }

func (w who) half() fault.Half {
	if w == host {
		return fault.HalfHost
	}
	return fault.HalfDNP
}

// pointFault is one failpoint that does one thing, once.
type pointFault struct {
	who    who
	point  failpoint.Point
	action failpoint.Action
}

func (p pointFault) String() string { return fmt.Sprintf("%s of %s at %s", p.action, p.who, p.point) }

// atStart says whether a point is passed only while its process starts, or starts another one.
func (p pointFault) atStart() bool {
	return strings.HasPrefix(string(p.point), "start-") || strings.HasPrefix(string(p.point), "daemon-")
}

// ends says whether the process does not go on.
func (p pointFault) ends() bool { return p.action >= failpoint.Hang }

func (p pointFault) hangs() bool { return p.action == failpoint.Hang || p.action == failpoint.Spin }

// pointFaults are all points with all that they can do. What drops, doubles or alters is for packets and stores.
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
	return out
}

// tryPoint arms one failpoint and watches what becomes of it.
func (f *field) tryPoint(n localcluster.NodeInfo, p pointFault) (sample, error) {
	s := sample{what: p.String() + " on " + string(n.ID), applied: true, touched: true, harmed: p.ends(), category: pointCategory(p)}
	before := map[fault.Half]recovery.Record{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		r, err := f.running(n, h)
		if err != nil {
			return s, fmt.Errorf("before %s: %w", s.what, err)
		}
		before[h] = r
	}
	mark, at := f.Mark(), localcluster.Monotonic()
	o := failpoint.Order{Point: p.point, Action: p.action.String(), DelayMS: 60}
	h := p.who.half()
	switch {
	case p.who == daemon:
		return f.tryDaemonPoint(n, p, o, s)
	case p.atStart():
		if err := f.armAtStart(n, p.who, o); err != nil {
			return s, err
		}
		if err := syscall.Kill(before[h].PID, syscall.SIGKILL); err != nil {
			return s, err
		}
	default:
		if err := f.arm(n, p.who, o); err != nil {
			return s, err
		}
	}
	wantTotal := before[h].Total
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
		return s, f.disarm(n, p)
	}
	after, err := f.await(n, h, func(r recovery.Record) bool {
		return r.State == recovery.Running && r.PID != 0 && r.Total >= wantTotal && (r.Last == nil || r.Last.Serving > 0 || r.Total == before[h].Total)
	})
	if err == nil && wantTotal > before[h].Total && after.Last != nil {
		s.detect, s.recover = time.Duration(after.Last.At-at), time.Duration(after.Last.At-at)+after.Last.Serving
		s.ours = byExit
		if after.Last.Cause.Kind == recovery.Hung {
			s.ours = byWatchdog
		}
	}
	if err != nil {
		s.what += ": " + err.Error()
	}
	s.healed = err == nil
	if !p.ends() {
		time.Sleep(200 * time.Millisecond) // what was done to a packet has its effect, if it has one
	}
	if !p.atStart() {
		s.prober = f.noticed(n, mark, at, localcluster.Monotonic())
	}
	if s.prober && !p.ends() && s.ours == "" {
		s.ours = byPeer // the map says so: somebody's watchdog or link test found it
	}
	return s, nil
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
func (f *field) armAtStart(n localcluster.NodeInfo, w who, o failpoint.Order) error {
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

// disarm has a point that nobody came by do nothing: it is hit for as long as it may be without effect.
func (f *field) disarm(n localcluster.NodeInfo, p pointFault) error {
	o := failpoint.Order{Point: p.point, Action: failpoint.Delay.String(), Times: 1}
	return f.arm(n, p.who, o)
}

// awaitPoint waits until a point was hit: the process says so, or ends, or hangs.
func (f *field) awaitPoint(n localcluster.NodeInfo, p pointFault, h fault.Half, total uint64) (bool, error) {
	deadline := time.Now().Add(2 * time.Second)
	if p.atStart() {
		deadline = time.Now().Add(patience)
	}
	for {
		if p.atStart() {
			_, err := os.Stat(filepath.Join(n.StateDir, failpoint.File(string(p.who))))
			if errors.Is(err, fs.ErrNotExist) {
				return true, nil
			}
		} else if r := f.record(n, h); p.ends() && r.Total >= total {
			return true, nil
		} else if !p.ends() {
			var st struct{ Hits, Armed uint64 }
			if err := n.Control(f.t.Context(), p.who.socket(), "GET", "/failpoint", nil, &st); err == nil && st.Armed == 0 {
				return true, nil
			}
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// tryDaemonPoint has the daemon come by one of its points: a half is stopped or killed, which the daemon does not survive;
// a new daemon must go on where it was.
func (f *field) tryDaemonPoint(n localcluster.NodeInfo, p pointFault, o failpoint.Order, s sample) (sample, error) {
	h := fault.HalfDNP
	before, err := f.running(n, h)
	if err != nil {
		return s, err
	}
	if err := f.arm(n, daemon, o); err != nil {
		return s, err
	}
	at, pid := localcluster.Monotonic(), f.daemonPID(n)
	signal := syscall.SIGKILL
	if p.point == failpoint.DaemonDetected {
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(before.PID, signal); err != nil {
		return s, err
	}
	if p.ends() { // somebody restarts it: systemd, a kubelet; here we do
		s.ours = byExit
		if p.hangs() {
			s.ours = byPeer // its halves live; systemd's watchdog or a person ends it
		}
		time.Sleep(400 * time.Millisecond)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		if err := f.startDaemon(n); err != nil {
			return s, err
		}
	}
	after, err := f.await(n, h, func(r recovery.Record) bool {
		return r.State == recovery.Running && r.PID != before.PID && r.PID != 0
	})
	if err != nil {
		s.what += ": " + err.Error()
		return s, nil //nolint:nilerr // the sample says so: it is not healed
	}
	if _, err := f.answered(n, h); err != nil {
		s.what += ": " + err.Error()
		return s, nil //nolint:nilerr // the sample says so: it is not healed
	}
	s.healed, s.recover = true, time.Duration(localcluster.Monotonic()-at)
	if after.Last != nil {
		s.detect = time.Duration(after.Last.At - at)
	}
	return s, nil
}

// failpoints has every step of halves and daemon go wrong in every way, under report load.
func failpoints(t *testing.T, fields []*field) {
	rounds, stride := 1, 7
	if *full {
		rounds, stride = 3, 1
	}
	faults := pointFaults()
	c, begin := newClass("failpoints", *seed), time.Now()
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
					s, err := f.tryPoint(n, p)
					mu.Lock()
					if err != nil {
						t.Error(err)
						s.applied = false
					}
					c.add(s)
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
