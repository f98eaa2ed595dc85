package inject

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
)

// harm is a way to make a process of a node hang or end.
type harm struct {
	name   string
	hang   bool
	signal syscall.Signal   // sent; 0: by failpoint
	action failpoint.Action // at point
}

var harms = []harm{
	{name: "SIGSTOP", hang: true, signal: syscall.SIGSTOP},
	{name: "deadlock", hang: true, action: failpoint.Hang},
	{name: "spin", hang: true, action: failpoint.Spin},
	{name: "SIGKILL", signal: syscall.SIGKILL},
	{name: "panic", action: failpoint.Panic},
	{name: "exit", action: failpoint.Exit},
}

// often returns a point that a half passes many times a second.
func often(h fault.Half) failpoint.Point {
	if h == fault.HalfHost {
		return failpoint.HostSend
	}
	return failpoint.LinkSend
}

// do harms a half and returns the time.
func (f *field) do(n cluster.NodeInfo, h fault.Half, x harm, pid int) (int64, error) {
	at := cluster.Monotonic()
	if x.signal != 0 {
		return at, syscall.Kill(pid, x.signal)
	}
	return at, f.arm(n, whoOf(h), failpoint.Order{Point: often(h), Action: x.action.String()})
}

// hurt harms a half and watches the recovery.
func (f *field) hurt(n cluster.NodeInfo, h fault.Half, x harm) (sample, halfcore.Recovery, error) {
	s := sample{node: n, what: fmt.Sprintf("%s of the %s half of %s", x.name, h, n.ID), applied: true, touched: true, harmed: true,
		category: catCrash}
	if x.hang {
		s.category = catHang
	}
	before, err := f.running(n, h)
	if err != nil {
		return s, halfcore.Recovery{}, fmt.Errorf("before %s: %w", s.what, err)
	}
	mark := f.Mark()
	at, err := f.do(n, h, x, before.PID)
	if err != nil {
		return s, halfcore.Recovery{}, fmt.Errorf("%s: %w", s.what, err)
	}
	after, err := f.await(n, h, func(r halfcore.RecoveryRecord) bool {
		return r.Total > before.Total && r.State == halfcore.Running && r.PID != before.PID && r.Last != nil && r.Last.Serving > 0
	})
	end := cluster.Monotonic()
	s.prober = f.noticed(n, mark, at, end).any()
	if err != nil {
		s.what += ": " + err.Error()
		return s, halfcore.Recovery{}, nil //nolint:nilerr // the sample says so: it is not healed
	}
	l := *after.Last
	s.healed = true
	s.found(l, at)
	if x.hang && s.ours != byWatchdog {
		s.what += ", found as " + l.Cause.String()
	}
	return s, l, nil
}

// hurtDaemon kills or stops the daemon of a node, and starts a new one or continues it. Its halves must not notice.
func (f *field) hurtDaemon(n cluster.NodeInfo, hang bool, gap time.Duration) (sample, error) {
	s := sample{what: fmt.Sprintf("SIGKILL of the daemon of %s", n.ID), applied: true, touched: true, category: catCrash}
	halves := []fault.Half{fault.HalfHost, fault.HalfDNP}
	var before [2]halfcore.RecoveryRecord
	for i, h := range halves {
		var err error
		if before[i], err = f.running(n, h); err != nil {
			return s, err
		}
	}
	pid, at := f.daemonPID(n), cluster.Monotonic()
	if hang {
		s.what, s.category = fmt.Sprintf("SIGSTOP of the daemon of %s for %s", n.ID, gap), catHang
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return s, err
		}
		time.Sleep(gap)
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return s, err
		}
	} else {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return s, err
		}
		time.Sleep(gap)
		if err := f.startDaemon(n); err != nil {
			return s, err
		}
	}
	for i, h := range halves {
		r, err := f.answered(n, h)
		if err != nil {
			return s, err
		}
		if r.PID != before[i].PID || r.Total != before[i].Total {
			s.prober = true // a half was restarted without need
			s.what += fmt.Sprintf(": the %s half was process %d, is %d", h, before[i].PID, r.PID)
		}
	}
	s.healed, s.recover = true, time.Duration(cluster.Monotonic()-at)
	return s, nil
}

// results collects samples from several goroutines.
type results struct {
	mu        sync.Mutex
	classes   map[string]*class
	bad       []string
	remaining map[string]int
	until     time.Time // zero: until there are enough samples
}

func newResults() *results {
	return &results{classes: map[string]*class{}, remaining: map[string]int{}}
}

// want sets the number of samples for a class.
func (r *results) want(name string, n int) {
	r.classes[name], r.remaining[name] = newClass(name, *seed), n
}

// take returns the class to try next, at random among those that need more; empty if none does.
func (r *results) take(x *rand.Rand) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.until.IsZero() && time.Now().After(r.until) {
		return ""
	}
	var open []string
	for name, n := range r.remaining {
		if n > 0 {
			open = append(open, name)
		}
	}
	if len(open) == 0 {
		return ""
	}
	slices.Sort(open)
	name := open[x.IntN(len(open))]
	r.remaining[name]--
	return name
}

func (r *results) add(name string, s sample, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.bad = append(r.bad, err.Error())
		return
	}
	r.classes[name].add(s)
}

const (
	hangs   = "processes: hangs"
	crashes = "processes: crashes"
	daemons = "processes: the daemon"
)

// rage harms halves and daemons of a node at random moments, one at a time, until there are enough samples.
func (f *field) rage(n cluster.NodeInfo, r *results, x *rand.Rand) {
	for {
		time.Sleep(time.Duration(x.Int64N(int64(300 * time.Millisecond))))
		name := r.take(x)
		switch name {
		case "":
			return
		case daemons:
			s, err := f.hurtDaemon(n, x.IntN(2) == 0, time.Duration(x.Int64N(int64(800*time.Millisecond))))
			r.add(name, s, err)
			continue
		}
		kinds := slices.DeleteFunc(slices.Clone(harms), func(h harm) bool { return h.hang != (name == hangs) })
		k := kinds[max(0, x.IntN(len(kinds)+1)-1)] // signals twice as often
		half := []fault.Half{fault.HalfHost, fault.HalfDNP}[x.IntN(2)]
		s, _, err := f.hurt(n, half, k)
		r.add(name, s, err)
	}
}

// rageAll runs rage on all nodes of some clusters in parallel.
func rageAll(fields []*field, r *results) {
	var all sync.WaitGroup
	for i, f := range fields {
		for j, n := range f.nodes {
			all.Go(func() { f.rage(n, r, rand.New(rand.NewPCG(*seed, uint64(i*100+j)))) })
		}
	}
	all.Wait()
}

// TestProcesses harms real halves and their daemons under report load. The system detects every hang and crash and
// recovers from it, and every report arrives once. Every failpoint is triggered with every action.
func TestProcesses(t *testing.T) {
	clusters, hung, crashed, daemon := 1, 32, 32, 12
	if *full {
		clusters, hung, crashed, daemon = 3, 3000, 3000, 3000
	}
	at := time.Now()
	var fields []*field
	for range clusters {
		fields = append(fields, newField(t, "2x2x1"))
	}
	t.Logf("%d clusters started after %s", clusters, time.Since(at))
	t.Run("recovery-timeline", func(t *testing.T) { timeline(t, fields[0]) })
	r := newResults()
	t.Run("hangs-and-crashes", func(t *testing.T) {
		if *rageFor > 0 {
			r.until, hung, crashed, daemon = time.Now().Add(*rageFor), math.MaxInt, math.MaxInt, math.MaxInt
		}
		r.want(hangs, hung)
		r.want(crashes, crashed)
		r.want(daemons, daemon)
		begin := time.Now()
		rageAll(fields, r)
		for _, s := range r.bad {
			t.Error(s)
		}
		for _, name := range []string{hangs, crashes, daemons} {
			r.classes[name].took = time.Since(begin)
			finish(t, r.classes[name])
		}
	})
	t.Run("failpoints", func(t *testing.T) { failpoints(t, fields) })
	t.Run("reports", func(t *testing.T) { accounts(t, fields) })
	if *full { // the short form has too few samples
		t.Run("promises", promises)
	}
}

// accounts ends the load and accounts for every report.
func accounts(t *testing.T, fields []*field) {
	for _, f := range fields {
		kept, replaced, lost, doubled := f.settle(t)
		done.kept += kept
		done.replaced += replaced
		done.lost += len(lost)
		done.doubled += len(doubled)
		if wrong := slices.Concat(lost, doubled); len(wrong) > 0 {
			t.Errorf("of %d reports %d were lost and %d doubled: %s", kept, len(lost), len(doubled), strings.Join(wrong[:min(10, len(wrong))], " "))
		}
	}
	t.Logf("%d reports were kept, %d of them replaced by others, %d lost, %d doubled", done.kept, done.replaced, done.lost, done.doubled)
	if done.kept < 50 {
		t.Errorf("%d reports are no load", done.kept)
	}
}
