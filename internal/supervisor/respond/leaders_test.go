package respond

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A leader is killed, or pauses and resumes late, at every step in the life of a response: nothing is done twice, no
// intent is lost, and every act is undone.
func TestKilledLeaderActsOnceAtEveryStep(t *testing.T) {
	l := newLab(t, grid.Dims{X: 4, Y: 4, Z: 1}, cordonAndTell)
	const most = 14 // a fault passes a point at most so often
	failed := 0
	for _, point := range failpoint.ResponderPoints() {
		for _, late := range []lateness{killed, lateAtOnce, lateAfter} {
			for n := 1; n <= most; n++ {
				f := failing{point, late, n}
				if l.life(fmt.Sprint(f), []failing{f}) == 1 {
					break // a fault does not pass this point so often
				}
				failed++
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
	l.verify()
	t.Logf("%d lives, %d leaders failed, %d attempts refused for their token", l.lives, failed, l.plant.refused)
	if failed < 50 {
		t.Errorf("only %d leaders failed", failed)
	}
}

// failing says where a leader fails: when it reaches the point for the n-th time.
type failing struct {
	point failpoint.Point
	late  lateness
	n     int
}

// lateness selects the later behaviour of a failed leader.
type lateness int

const (
	killed     lateness = iota // it does nothing more
	lateAtOnce                 // it resumes as soon as another one leads
	lateAfter                  // it resumes when the other one has finished
)

// life plays one fault and returns the number of leaders it took. Each leader but the last fails at its point, if it
// gets there.
func (l *lab) life(what string, fails []failing) (leaders int) {
	l.t.Helper()
	l.lives++
	id := fault.DefaultNodeID(grid.Coord{X: l.lives % 4, Y: l.lives / 4 % 4})
	var all []*replica
	next := func() {
		if i := len(all); i < len(fails) {
			all = append(all, l.start(fails[i].point, fails[i].n))
		} else {
			all = append(all, l.start("", 0))
		}
		if i := len(all) - 2; i >= 0 && fails[i].late == lateAtOnce {
			l.goOn(all[i])
		}
	}
	until := func(state string, want func(*response.Response) bool) {
		for {
			if _, ok := l.await(fmt.Sprintf("%s: %s, leader %d", what, state, len(all)), all[len(all)-1].hit, want); ok {
				return
			}
			next()
		}
	}
	next()
	l.set(id, fault.Failed)
	until("done", func(r *response.Response) bool { return r.State == response.Done })
	l.set(id, fault.Normal)
	until("undone", func(r *response.Response) bool { return r.State == response.Undone && !r.Closed.IsZero() })
	for i, r := range all[:len(all)-1] {
		if fails[i].late == lateAfter {
			l.goOn(r)
		}
	}
	for _, r := range all {
		l.end(r)
	}
	l.check(what)
	l.plant.reset()
	_, err := l.c.Delete(l.t.Context(), store.Prefix+"responses/records/", clientv3.WithPrefix()) // keeps later lives fast
	must(l.t, err)
	return len(all)
}

// rounds is how often a leader fails in TestRepeatedlyFailingLeadersActOnce, each time at another moment. One round takes 20 ms.
var rounds = flag.Int("rounds", 80, "how often leaders fail in TestRepeatedlyFailingLeadersActOnce")

// Leaders fail one after the other, at random points.
func TestRepeatedlyFailingLeadersActOnce(t *testing.T) {
	l := newLab(t, grid.Dims{X: 4, Y: 4, Z: 1}, cordonAndTell)
	rng := rand.New(rand.NewPCG(7, 1))
	points := failpoint.ResponderPoints()
	failed := 0
	for failed < *rounds {
		var fails []failing
		for range 1 + rng.IntN(4) {
			fails = append(fails, failing{points[rng.IntN(len(points))], lateness(rng.IntN(3)), 1 + rng.IntN(3)})
		}
		failed += l.life(fmt.Sprint(fails), fails) - 1
		if t.Failed() {
			t.FailNow()
		}
	}
	l.verify()
	t.Logf("%d lives, %d leaders failed, %d attempts refused for their token", l.lives, failed, l.plant.refused)
	if l.plant.refused == 0 {
		t.Error("no attempt came with a token that had been passed")
	}
}
