package inject

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/machine"
)

// Classes of flips in live data. A half that acts ends when it finds one, and resumes from its copy. A half that only
// notes shows which flips would have had an effect: the base of the coverage.
const (
	liveValues      = "live data: values"
	liveRefs        = "live data: pointers and lengths"
	liveValuesNoted = "live data: values, only noted"
	liveRefsNoted   = "live data: pointers and lengths, only noted"
)

// liveKinds are these classes, in the order in which a campaign makes them.
var liveKinds = []struct {
	name        string
	refs, noted bool
}{{liveValues, false, false}, {liveRefs, true, false}, {liveValuesNoted, false, true}, {liveRefsNoted, true, true}}

// liveClusters is the number of clusters of a whole run. More would starve each other on a machine with two cores.
const liveClusters = 4

// tryLive flips one bit in the live data of a half.
func (f *field) tryLive(n cluster.NodeInfo, w who, seed uint64, refs, noted bool) (sample, error) {
	return f.tryFlip(n, w, func(int) (string, error) {
		var hit struct {
			Path    string
			Bit, Of int
		}
		err := f.ask(n, w, "POST", "/flip", map[string]any{"Seed": seed, "Refs": refs, "Note": noted}, &hit)
		if ended(err) { // a flipped pointer may end the half before it has answered
			return "not answered", nil
		}
		return fmt.Sprintf("%s, bit %d (of %d places)", hit.Path, hit.Bit, hit.Of), err
	}, noted)
}

// TestLive flips bits in the live data of running halves under load: numbers, states, times and buffers, and the
// pointers and lengths that lead to them. A half finds each flip that had an effect, a restart heals it, and a half that
// acts loses no report. Nodes tried at the same time are never neighbours, because the restart of a neighbour shows in
// the links.
func TestLive(t *testing.T) {
	clusters, until := 1, time.Time{}
	if *liveFor > 0 {
		clusters = liveClusters
	}
	fields := make([]*field, 0, clusters)
	for range clusters {
		fields = append(fields, newField(t, "2x2x1"))
	}
	c := conditions{began: time.Now(), load: machine.LoadAverages()}
	var classes []*class
	var wrong [][2]int                          // by cluster: reports lost and doubled while its halves acted
	for _, noted := range []bool{false, true} { // apart, so that lost reports belong to one of them
		if *liveFor > 0 {
			until = time.Now().Add(*liveFor * time.Duration(map[bool]int{false: 1, true: 3}[noted]) / 4)
		}
		some := flipLive(t, fields, noted, until)
		for i, f := range fields {
			within := patience
			if noted { // lost reports do not come
				within = 10 * time.Second
			}
			kept, replaced, lost, doubled := f.settleWithin(t, within) // since the start of the cluster
			if noted {
				some[0].lost += len(lost) - wrong[i][0]
				some[0].doubled += len(doubled) - wrong[i][1]
				continue
			}
			wrong = append(wrong, [2]int{len(lost), len(doubled)})
			done.kept, done.replaced, done.lost, done.doubled = done.kept+kept, done.replaced+replaced, done.lost+len(lost),
				done.doubled+len(doubled)
			for _, id := range slices.Concat(lost, doubled) {
				t.Errorf("lost or doubled: %s", id)
			}
			f.startLoad()
		}
		classes = append(classes, some...)
	}
	for _, k := range classes {
		k.apart, k.took = true, time.Since(c.began)
		report(t, k)
		t.Logf("%s: %d samples: %v by %s; effective %d, covered %d, found without effect %d, prober %d; lost %d, doubled %d", k.name, k.n,
			k.outcomes, byWhom(k.by), k.effective, k.covered, k.foundQuiet, k.proberOf, k.lost, k.doubled)
		if !meetsTarget(k.name, k.covered, k.effective) {
			t.Errorf("%s: %d of %d effective flips found", k.name, k.covered, k.effective)
		}
	}
	if c.failed = t.Failed(); *liveFor == 0 || *recordOut == "" {
		return
	}
	live := c.recordOf(classes)
	live.Full = true
	amend(t, *recordOut, func(whole *record) { whole.Live = &live })
}

// flipLive flips bits in halves that act, or in halves that only note changes: until the given time, or a few if it is zero. While halves
// only note changes, three of four flips hit pointers and lengths: a flip in a value has an effect less often.
func flipLive(t *testing.T, fields []*field, noted bool, until time.Time) []*class {
	var classes []*class
	var kinds []int
	for i, k := range liveKinds {
		if k.noted == noted {
			kinds = append(kinds, i)
			classes = append(classes, newClass(k.name, *seed))
		}
	}
	turns, few := []int{0, 1}, 6
	if noted {
		turns, few = []int{0, 1, 1, 1}, 8
	}
	var mu sync.Mutex
	made := 0
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if more := time.Now().Before(until) || until.IsZero() && made < few; !more {
			return 0, false
		}
		made++
		return turns[made%len(turns)], true
	}
	var all sync.WaitGroup
	for i, f := range fields {
		for j, n := range []cluster.NodeInfo{f.nodes[0], f.nodes[3]} { // (0,0) and (1,1)
			r := rand.New(rand.NewPCG(*seed, uint64(i*10+j)))
			if noted {
				r = rand.New(rand.NewPCG(*seed, uint64(i*10+j+5)))
			}
			all.Go(func() {
				for k, more := take(); more; k, more = take() {
					s, err := f.tryLive(n, []who{host, dnp}[r.IntN(2)], r.Uint64(), liveKinds[kinds[k]].refs, noted)
					mu.Lock()
					if err != nil {
						t.Error(err)
						s.applied = false
					}
					classes[k].add(s)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	return classes
}
