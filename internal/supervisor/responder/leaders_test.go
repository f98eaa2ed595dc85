package responder

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

// A leader is killed, or stands still and goes on late, at every step of the life of a response: nothing is done twice, nothing that was
// intended is lost, and what was done is put back.
func TestLeadersFail(t *testing.T) {
	l := newLab(t, grid.Dims{X: 4, Y: 4, Z: 1}, cordonAndTell)
	const most = 14 // a life passes by a point at most so often
	failed := 0
	for _, point := range failpoint.ResponderPoints() {
		for _, late := range []lateness{killed, lateAtOnce, lateAfter} {
			for n := 1; n <= most; n++ {
				f := failing{point, late, n}
				if l.life(fmt.Sprint(f), []failing{f}) == 1 {
					break // a life does not pass by so often
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

// failing is where a leader fails: the n-th time that it passes by.
type failing struct {
	point failpoint.Point
	late  lateness
	n     int
}

// lateness is what becomes of who has failed.
type lateness int

const (
	killed     lateness = iota // it does nothing more
	lateAtOnce                 // it goes on as soon as another one leads
	lateAfter                  // it goes on when the other one has done all
)

// life is that of one fault, and says whether the first leader has failed in it. Each leader but the last fails somewhere, if it comes
// to that.
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
	_, err := l.c.Delete(l.t.Context(), store.Prefix+"responses/records/", clientv3.WithPrefix()) // so that the last life takes no longer than the first
	must(l.t, err)
	return len(all)
}

// rounds is how often a leader fails in TestLeadersFailAgain, each time at another moment, which takes 20 ms.
var rounds = flag.Int("rounds", 80, "how often leaders fail in TestLeadersFailAgain")

// Leaders fail one after the other, anywhere.
func TestLeadersFailAgain(t *testing.T) {
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
