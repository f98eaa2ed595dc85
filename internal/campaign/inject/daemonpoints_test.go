package inject

import (
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
)

// tryDaemonPoint makes the daemon pass one of its points by stopping or killing a half. If the daemon does not survive,
// a new one must continue from its state.
func (f *field) tryDaemonPoint(n cluster.NodeInfo, p pointFault) (sample, error) {
	s := sample{what: p.String() + " on " + string(n.ID), applied: true, touched: true, category: pointCategory(p)}
	h := fault.HalfDNP
	if _, err := f.running(n, fault.HalfHost); err != nil {
		return s, err
	}
	before, err := f.running(n, h)
	if err != nil {
		return s, err
	}
	if p.hangs() {
		if err := f.rested(n); err != nil {
			return s, err
		}
	}
	if err := f.arm(n, daemon, p.order()); err != nil {
		return s, err
	}
	mark, at, pid := f.Mark(), cluster.Monotonic(), f.daemonPID(n)
	signal := syscall.SIGKILL
	if p.point == failpoint.DaemonDetected {
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(before.PID, signal); err != nil {
		return s, err
	}
	hit, gone := f.awaitDaemonPoint(n, p)
	if !hit {
		if hit, err = f.disarm(n, daemon); err != nil {
			return s, err
		}
	}
	switch {
	case !hit:
		s.applied = false
	case gone:
		s.ours, s.harmed, s.detect = byExit, true, time.Duration(cluster.Monotonic()-at)
	case p.hangs():
		f.watchHung(n, mark, at, &s)
	}
	if gone || hit && p.ends() { // in production systemd or a kubelet restarts it; here the test does
		time.Sleep(100 * time.Millisecond)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		if err := f.startDaemon(n); err != nil {
			return s, err
		}
	}
	if _, err = f.await(n, h, func(r halfcore.RecoveryRecord) bool {
		return r.State == halfcore.Running && r.PID != before.PID && r.PID != 0
	}); err == nil {
		_, err = f.answered(n, h)
	}
	if err != nil {
		s.what += ": " + err.Error()
		return s, nil //nolint:nilerr // the sample says so: it is not healed
	}
	s.healed, s.recover = true, time.Duration(cluster.Monotonic()-at)
	return s, nil
}

// awaitDaemonPoint waits until the daemon has passed a point, or has ended, which shows as a refused connection.
func (f *field) awaitDaemonPoint(n cluster.NodeInfo, p pointFault) (hit, gone bool) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var st struct{ Armed uint64 }
		err := f.get(n, daemon, &st)
		switch {
		case absent(err):
			return true, true
		case err == nil && st.Armed == 0 && (!p.ends() || p.hangs()):
			return true, false
		}
	}
	return false, false
}

// watchHung waits for the node's reports while its daemon hangs. The other half reports a half that the daemon has not
// restarted. If both halves live, no harm shows until the next restart is necessary.
func (f *field) watchHung(n cluster.NodeInfo, mark int, at int64, s *sample) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, e := range f.Since(mark) {
			if e.GetNode() == string(n.ID) && e.GetComponent() == "dnp" && ofHalf(e) {
				s.ours, s.prober, s.detect = byPeer, true, time.Duration(e.At-at)
				s.what += ": " + e.String()
				return
			}
		}
	}
	if v := f.noticed(n, mark, at, cluster.Monotonic()); v.gone || v.silent { // the map reports the half that the test has ended
		s.prober = true
		s.what += ": " + v.String()
	}
}
