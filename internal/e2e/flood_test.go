package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

// flap changes the sensors of a node to and fro until it is stopped, and then leaves them bad.
func flap(t trial, node string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	set := func(values ...float64) error {
		var errs []error
		for i, name := range []string{"temperature", "voltage", "power"} {
			_, err := t.Cluster.Inject(context.Background(), node, sensor(name, values[i]))
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			err := set(110, 12, 5000)
			<-tick.C
			if err = errors.Join(err, set(45, 20, 180)); err != nil {
				done <- err
				return
			}
			<-tick.C
		}
		done <- set(110, 20, 5000)
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestFlappingNodeDelaysNoOther lets the components of one node flap, so that it sends more than ten times the reports of an idle node (row
// 15 of the fault catalogue): another node's fault is detected meanwhile, the log stays within its bound and drains,
// and the last reported state counts.
func TestFlappingNodeDelaysNoOther(t *testing.T) {
	const node = "n0-0-0"
	periods := patient()
	period := config.Duration(10 * time.Millisecond)
	periods.SensorPeriod = &period
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: periods})
	http := l.Cluster.Info().Nodes[0].HTTP
	try(t, l, "flapping sensors", func(t trial) {
		p, err := t.Cluster.Periods()
		if err != nil {
			t.Fatal(err)
		}
		stop := flap(t, node)
		most, rate, normal := 0.0, 0.0, float64(time.Second)/float64(p.DigestPeriod)
		for end := time.Now().Add(patience); rate < 10*normal; { // other programs may slow the sender down at first
			if time.Now().After(end) {
				t.Errorf("%.0f reports a second are no flood: want 10 times %.0f", rate, normal)
				break
			}
			begin, before := time.Now(), scrape(t.T, http).total("lofamo_agent_reports_total", "")
			most = max(most, t.awaitReports(http, before+300))
			rate = 300 / time.Since(begin).Seconds()
		}
		mark := t.trialFrom()
		mark.inject("1,1,0", simple(cluster.KillHost))
		s := mark.becomes("n1-1-0", "host", failed)
		t.Logf("%.0f reports a second, at most %.0f in the log; a host killed elsewhere: %s, awareness latency %s", rate, most,
			s, s.GetAwarenessLatency().AsDuration())
		stop()
		for _, c := range []string{"temperature", "voltage", "power"} {
			t.comesToBe(node, c, failed)
		}
		t.awaitWorkedOff(http)
		for _, s := range t.Cluster.Info().Supervisors {
			m := scrape(t.T, s.HTTP)
			for _, q := range []string{"evidence", "datagrams", "forward", "acks", "answers"} {
				if n := m.total("lofamo_dropped_total", `queue="`+q+`"`); n > 0 {
					t.Errorf("%s dropped %v of the queue %s: ten times the normal rate is no reason", s.ID, n, q)
				}
			}
		}
		if err := t.Cluster.HealAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.settled()
		t.neverFailed()
		t.othersWereSpared(node, "n1-1-0")
	})
}

// trialFrom is the trial from now on.
func (t trial) trialFrom() trial {
	t.mark = t.Mark()
	return t
}

// comesToBe waits until a component has the wanted state, from any previous one.
func (t trial) comesToBe(node, component string, want lofamov1.State) {
	t.Helper()
	deadline := time.After(patience)
	for {
		got := t.component(t.node(node), component).GetState()
		if got == want {
			if want == failed {
				t.mayFail(node, component)
			}
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s of %s is %s at last, want %s", component, node, got, want)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// maxLogged is the capacity of a host half's log of reports, and the digest.
const maxLogged = 1024 + 1

// awaitReports waits until a host half has made n reports. It returns the highest number in its log.
func (t trial) awaitReports(http string, n float64) (most float64) {
	t.Helper()
	deadline := time.After(3 * patience)
	for {
		m := scrape(t.T, http)
		pending := m.total("lofamo_agent_reports_pending", "")
		if most = max(most, pending); pending > maxLogged {
			t.Errorf("%v reports in the log, want at most %d", pending, maxLogged)
		}
		if m.total("lofamo_agent_reports_total", "") >= n {
			return most
		}
		select {
		case <-deadline:
			t.Fatalf("%v reports were made, want %v", m.total("lofamo_agent_reports_total", ""), n)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitWorkedOff waits until a host half has nothing in its log but perhaps a digest, and checks that
// nothing was left out.
func (t trial) awaitWorkedOff(http string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		m := scrape(t.T, http)
		if n := m.total("lofamo_agent_reports_shortened_total", ""); n > 0 {
			t.Fatalf("%v reports were left out, though supervisors answered", n)
		}
		if m.total("lofamo_agent_reports_pending", "") <= 1 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%v reports are still in the log", m.total("lofamo_agent_reports_pending", ""))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
