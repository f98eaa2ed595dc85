package inject

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Constants of the prober. It waits for an answer at most answerWithin, and disregards a look if its own process
// stalled meanwhile for longer than stoodStill.
const (
	askEvery     = 25 * time.Millisecond
	answerWithin = 150 * time.Millisecond
	stoodStill   = 50 * time.Millisecond
)

// look is a failed look of the prober.
type look struct {
	at, end int64 // cluster.Monotonic
	gone    bool  // no process listened, or it closed the connection; otherwise no answer in time
	again   bool  // the look before failed too
}

// probe is the application-level prober of a node: it queries the status socket, as `lofamo-agent status` does. noticed
// adds the map's findings afterwards.
func (f *field) probe(ctx context.Context, n cluster.NodeInfo) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for again := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		at := cluster.Monotonic()
		bound, cancel := context.WithTimeout(ctx, answerWithin)
		_, err := local.AskStatus(bound, n.StateDir)
		late := errors.Is(bound.Err(), context.DeadlineExceeded)
		cancel()
		if err == nil || ctx.Err() != nil {
			again = false
			continue
		}
		l := look{at: at, end: cluster.Monotonic(), gone: !late, again: again}
		again = true
		f.proberMu.Lock()
		f.vain[string(n.ID)] = append(f.vain[string(n.ID)], l)
		f.proberMu.Unlock()
	}
}

// notice holds the prober's findings about a node.
type notice struct {
	late   bool   // its host half did not answer in time
	silent bool   // two looks in a row had no answer; users would not notice a shorter failure
	gone   bool   // no process listened, or it closed the connection
	mapped string // a state of one of its halves in the map, other than NORMAL
}

// any reports whether there was any finding.
func (v notice) any() bool { return v.late || v.certain() }

// certain reports whether there was a finding that a busy machine cannot cause.
func (v notice) certain() bool { return v.silent || v.gone || v.mapped != "" }

func (v notice) String() string {
	var parts []string
	for _, x := range []struct {
		is   bool
		name string
	}{{v.gone, "no process listened, or it closed the connection"}, {v.silent, "no answer twice in a row"},
		{v.late && !v.silent, "no answer once"}, {v.mapped != "", v.mapped}} {
		if x.is {
			parts = append(parts, x.name)
		}
	}
	return strings.Join(parts, "; ")
}

// noticed returns the prober's findings about a node between two times. It ignores links, because a node's links report
// the restart of a neighbour.
func (f *field) noticed(n cluster.NodeInfo, mark int, from, to int64) notice {
	var v notice
	f.proberMu.Lock()
	v.take(f.vain[string(n.ID)], from, to, func(l look) bool { return f.pace.longest(l.at, l.end) >= stoodStill })
	f.proberMu.Unlock()
	for _, s := range f.Since(mark) {
		if s.GetNode() == string(n.ID) && s.At <= to && v.mapped == "" && ofHalf(s) {
			v.mapped = s.String()
		}
	}
	return v
}

// take adds the failed looks that began between two times and are not doubted.
func (v *notice) take(looks []look, from, to int64, doubted func(look) bool) {
	before := false // the look before failed, began in the interval, and is not doubted
	for _, l := range looks {
		if l.at < from || l.at > to || doubted(l) {
			before = false
			continue
		}
		v.gone = v.gone || l.gone
		v.late = v.late || !l.gone
		v.silent = v.silent || !l.gone && l.again && before
		before = true
	}
}

// isHalf reports whether a component of the map is one of a node's halves.
func isHalf(c string) bool { return c == "host" || c == "dnp" || c == "dnp-core" }

// ofHalf reports whether a change of the map gives a half a state other than NORMAL.
func ofHalf(s lab.Seen) bool {
	return isHalf(s.GetComponent()) && s.GetTo() != lofamov1.State_NORMAL || s.GetComponent() == "node" && s.GetTo() == lofamov1.State_FAILED
}

func TestNoticeOfEachSilence(t *testing.T) {
	looks := []look{{at: 1, gone: true}, {at: 10}, {at: 20, again: true}, {at: 40}, {at: 50}, {at: 60, again: true}}
	for _, tc := range []struct {
		from, to int64
		doubted  int64
		want     notice
	}{
		{from: 0, to: 5, want: notice{gone: true}},
		{from: 2, to: 9},
		{from: 2, to: 15, want: notice{late: true}},
		{from: 2, to: 25, want: notice{late: true, silent: true}},
		{from: 2, to: 25, doubted: 10, want: notice{late: true}},
		{from: 15, to: 55, want: notice{late: true}}, // the first of the two was before, and the next two had an answer between them
		{from: 0, to: 99, doubted: 20, want: notice{gone: true, late: true, silent: true}},
	} {
		var got notice
		got.take(looks, tc.from, tc.to, func(l look) bool { return l.at == tc.doubted })
		if got != tc.want {
			t.Errorf("%d to %d: %+v, want %+v", tc.from, tc.to, got, tc.want)
		}
	}
}

// pace records the stalls of this process: a fault seen then may be the delay of the machine, or of this process.
type pace struct {
	mu     sync.Mutex
	stalls []stall
	last   int64
}

type stall struct{ from, to int64 }

const paceEvery = 5 * time.Millisecond

// run records every stall, until ctx ends.
func (p *pace) run(ctx context.Context) {
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		p.beat(cluster.Monotonic())
		<-tick.C
	}
}

func (p *pace) beat(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != 0 && now-p.last >= int64(4*paceEvery) {
		p.stalls = append(p.stalls, stall{p.last, now})
	}
	p.last = now
}

// longest returns the longest stall of this process that overlaps an interval.
func (p *pace) longest(from, to int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var most int64
	for i := len(p.stalls) - 1; i >= 0 && p.stalls[i].to >= from; i-- {
		if s := p.stalls[i]; s.from <= to {
			most = max(most, s.to-s.from)
		}
	}
	return time.Duration(most)
}

func TestLongestPauseBetweenBeats(t *testing.T) {
	var p pace
	const ms = int64(time.Millisecond)
	for _, at := range []int64{100, 105, 112, 180, 185, 300, 305} {
		p.beat(at * ms)
	}
	for _, tc := range []struct{ from, to, want int64 }{{100, 111, 0}, {100, 112, 68}, {150, 160, 68}, {181, 184, 0}, {150, 200, 115},
		{301, 400, 0}} {
		if got := p.longest(tc.from*ms, tc.to*ms); int64(got) != tc.want*ms {
			t.Errorf("%d to %d: %s, want %d ms", tc.from, tc.to, got, tc.want)
		}
	}
}

// restartShows is the time after its self-test within which a restart may appear in the map.
const restartShows = 2 * time.Second

// rested waits until earlier events of a node can no longer look like new ones: neither half was restarted recently,
// and the map shows them as NORMAL.
func (f *field) rested(n cluster.NodeInfo) error {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if _, err := f.await(n, h, func(r halfcore.RecoveryRecord) bool {
			if r.State != halfcore.Running || r.PID == 0 {
				return false
			}
			l := r.Last
			return l == nil || l.Serving == 0 || l.Proven > 0 && time.Duration(cluster.Monotonic()-l.At) >= l.Proven+restartShows
		}); err != nil {
			return err
		}
	}
	return f.wellAgain(n, isHalf)
}
