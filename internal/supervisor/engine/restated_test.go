package engine

import (
	"slices"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// wants records the origins whose full digests are requested.
type wants struct {
	mu      sync.Mutex
	origins []fault.Origin
}

func (w *wants) RequestFull(origins []fault.Origin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.origins = append(w.origins, origins...)
}

func (w *wants) take() []fault.Origin {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.origins
	w.origins = nil
	return out
}

func memoryDigest(node fault.NodeID, seq fault.Seq, st fault.State) fault.Report {
	return fault.Report{ID: fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: 2, Seq: seq}, Digest: true,
		Observations: []fault.Observation{{Node: node, Component: fault.ComponentMemory, State: st, Kind: fault.KindSelf}}}
}

// whole submits a full digest as the intake does.
func (h *harness) whole(r fault.Report, status *lofamov1.DeliveryStatus) uint64 {
	words := Words(r, status, servicenet.Health{})
	r.Observations = slices.Clone(r.Observations)
	h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{r}, Status: status, Words: words},
		Answerer: h.box,
		Arrived:  time.Now()})
	return words
}

func (h *harness) restate(w *wants, r fault.Report, words uint64) {
	h.Submit(Input{Restated: []Restated{{ID: r.ID, Words: words, Path: fault.PathDirect, Arrived: time.Now()}}, Requester: w,
		Arrived: time.Now()})
}

// TestRestatedDigestNeedsKnownDigest: a restated digest is a sign of life while the term knows the digest that it restates. For any
// other the term requests the full digest and never assumes a known one.
func TestRestatedDigestNeedsKnownDigest(t *testing.T) {
	h, w := start(t, memstore.New(100), nil), new(wants)
	said := &lofamov1.DeliveryStatus{State: lofamov1.PathState_ARMED}
	normal, origin := memoryDigest("n1-0-0", 1, fault.Normal), fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}
	words := h.whole(normal, said)
	h.taken(t)
	first := h.node(t, "n1-0-0")

	normal.ID.Seq = 2
	h.restate(w, normal, words)
	h.taken(t)
	second := h.node(t, "n1-0-0")
	if got := w.take(); len(got) != 0 {
		t.Fatalf("wants %v whole, which it has", got)
	}
	if !second.Status.Life.After(first.Status.Life) || !second.DeliveryAt.After(first.DeliveryAt) || second.Delivery != said {
		t.Errorf("no sign of life: %s after %s, its reports %s after %s", second.Status.Life, first.Status.Life, second.DeliveryAt,
			first.DeliveryAt)
	}
	h.restate(w, normal, words) // a duplicate
	h.taken(t)
	if again := h.node(t, "n1-0-0"); !again.Status.Life.Equal(second.Status.Life) || len(w.take()) != 0 {
		t.Error("a copy is a sign of life")
	}
	v := h.received(t, ReportQuery{Limit: 10, Digests: true})
	if len(v.Reports) != 2 || v.Reports[0].ID.Seq != 2 {
		t.Errorf("received %+v", v.Reports)
	}

	sick := memoryDigest("n1-0-0", 3, fault.Sick) // the full digest was lost
	h.restate(w, sick, Words(sick, said, servicenet.Health{}))
	h.taken(t)
	if got := w.take(); !slices.Equal(got, []fault.Origin{origin}) {
		t.Errorf("wants %v whole, want %s", got, origin)
	}
	sick.ID.Seq = 4
	h.whole(sick, said)
	awaitEvents(t, h, 2)
	h.taken(t)
	for e := h.node(t, "n1-0-0"); e.Status.State != fault.Sick; e = h.node(t, "n1-0-0") { // committed soon
		time.Sleep(time.Millisecond)
	}

	next := start(t, h.store, nil) // a new term has no digests
	sick.ID.Seq = 5
	next.restate(w, sick, Words(sick, said, servicenet.Health{}))
	next.taken(t)
	if got := w.take(); !slices.Equal(got, []fault.Origin{origin}) || !next.node(t, "n1-0-0").Status.Life.IsZero() {
		t.Errorf("a new term wants %v whole, want %s", got, origin)
	}
}

// TestDigestThatExpiredAtFollowerIsNoSignOfLife: a digest may wait at a follower, for instance while there is no leader. When its
// statements have expired by then, its half has sent newer digests since, or is dead: the node is not NORMAL. Reports of changes are
// committed, however old.
func TestDigestThatExpiredAtFollowerIsNoSignOfLife(t *testing.T) {
	h := start(t, memstore.New(100), func(c *Config) { c.Awareness.DigestPeriod = 10 * time.Second })
	submit := func(seq fault.Seq, digest bool, held time.Duration) {
		r := memoryDigest("n1-0-0", seq, fault.Normal)
		if r.Digest = digest; digest {
			r.Observations = append(r.Observations, fault.Observation{Node: "n1-0-0", Component: fault.ComponentDNP, State: fault.Normal,
				Kind: fault.KindWatchdog})
		}
		h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{r}}, Answerer: h.box, Arrived: time.Now(),
			Held: held})
	}
	submit(1, true, 41*time.Second)
	submit(2, false, 41*time.Second) // its commit has the changes of the digest as well
	h.box.await(t, 1)
	if s := h.node(t, "n1-0-0").Status; s.State != fault.Unknown {
		t.Errorf("after a digest that waited for more than four digest periods the node is %s", s.State)
	}
	submit(3, true, 39*time.Second)
	submit(4, false, 0)
	h.box.await(t, 2)
	if s := h.node(t, "n1-0-0").Status; s.State != fault.Normal {
		t.Errorf("after a digest that waited for less than four digest periods the node is %s", s.State)
	}
}

// TestReportThatExpiredAtFollowerIsNoSignOfLife: a report of a change is committed, however long it waited at a follower. After a wait
// longer than its statements count, it shows only that its half has lived before the wait.
func TestReportThatExpiredAtFollowerIsNoSignOfLife(t *testing.T) {
	h := start(t, memstore.New(100), func(c *Config) { c.Awareness.DigestPeriod = 10 * time.Second })
	const held = 41 * time.Second
	r := memoryDigest("n1-0-0", 1, fault.Normal)
	r.Digest = false
	h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{r}}, Answerer: h.box, Arrived: time.Now(),
		Held: held})
	h.box.await(t, 1)
	if life := h.node(t, "n1-0-0").Status.Life; life.After(time.Now().Add(-held)) {
		t.Errorf("after a report that waited for %s the node has lived %s ago", held, time.Since(life))
	}
}

// TestReportBetweenDigests: the second of two equal digests may withdraw a report that came between them, so the term
// requests it in full.
func TestReportBetweenDigests(t *testing.T) {
	h, w := start(t, memstore.New(100), nil), new(wants)
	d := memoryDigest("n1-0-0", 1, fault.Normal)
	words := h.whole(d, nil)
	h.taken(t)
	h.report(2, false, fault.ComponentPower, fault.Sick)
	h.box.await(t, 1)
	d.ID.Seq = 3
	h.restate(w, d, words)
	h.taken(t)
	if got := w.take(); len(got) != 1 {
		t.Errorf("wants %v whole", got)
	}
	d.ID.Seq = 4
	h.whole(d, nil)
	for deadline := time.Now().Add(wait); h.node(t, "n1-0-0").Status.State == fault.Sick; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what the digest no longer says stands")
		}
	}
}
