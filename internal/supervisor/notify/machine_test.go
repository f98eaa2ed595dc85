package notify_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// ring is a map of nodes in a ring.
type ring struct {
	states   []lofamov1.State
	revision uint64
	groups   []string // of everybody
	cut      bool     // from the store
	marked   map[fault.NodeID]bool
}

func id(i int) fault.NodeID { return fault.NodeID(fmt.Sprintf("n%d", i)) }

func (r *ring) index(node fault.NodeID) int {
	for i := range r.states {
		if id(i) == node {
			return i
		}
	}
	return -1
}

func (r *ring) Revision() uint64 { return r.revision }

func (r *ring) Quorum() bool { return !r.cut }

func (r *ring) Node(node fault.NodeID) *lofamov1.NodeView {
	i := r.index(node)
	if i < 0 {
		return &lofamov1.NodeView{Id: string(node), State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE}
	}
	return &lofamov1.NodeView{Id: string(node), State: r.states[i], Cause: lofamov1.Cause_NONE, Groups: r.groups,
		Maintenance: r.marked[node]}
}

func (r *ring) Neighbours(node fault.NodeID) []fault.NodeID {
	i, n := r.index(node), len(r.states)
	return []fault.NodeID{id((i + 1) % n), id((i + n - 1) % n)}
}

func newRing(n int) *ring {
	r := &ring{revision: 10}
	for range n {
		r.states = append(r.states, lofamov1.State_NORMAL)
	}
	return r
}

var begin = time.Unix(1_000_000, 0)

func config() notify.MachineConfig {
	return notify.MachineConfig{Window: 2 * time.Second, Again: 400 * time.Millisecond, Backlog: 5 * time.Second}
}

// TestEveryHalfLearnsWhatConcernsIt: despite lost, duplicated and late messages, and those of other replicas, every half knows
// the state that concerns it within some digests after the last change, and nothing false.
func TestEveryHalfLearnsWhatConcernsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(rapid.IntRange(3, 40).Draw(t, "nodes"))
		replicas := []*notify.Machine{notify.NewMachine(config()), notify.NewMachine(config())}
		halves := make([]*hostcore.FaultView, len(r.states))
		for i := range halves {
			halves[i] = hostcore.NewFaultView(id(i), r.Neighbours(id(i)))
		}
		now, primary := begin, 0
		lossy := true
		var late []notify.Notice
		lost := func() bool { return lossy && rapid.IntRange(0, 3).Draw(t, "lost") == 0 }
		var deliver func(notices []notify.Notice)
		deliver = func(notices []notify.Notice) {
			for _, notice := range notices {
				if lost() {
					if rapid.Bool().Draw(t, "late") {
						late = append(late, notice)
					}
					continue
				}
				if _, wanted := halves[r.index(notice.Node)].Take(notice.Update); wanted {
					for _, msg := range halves[r.index(notice.Node)].Interest(1) {
						if !lost() {
							deliver(replicas[primary].Interested(now, msg, r))
						}
					}
				}
			}
		}
		digests := func() {
			now = now.Add(500 * time.Millisecond)
			for i, h := range halves {
				if !lost() {
					deliver(replicas[primary].Heard(now, notify.Digest{Node: id(i), Epoch: 1, Revision: h.DigestRevision(), List: h.Serial()}, r))
				}
			}
			for _, m := range replicas {
				m.Expire(now)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1:
				i := rapid.IntRange(0, len(r.states)-1).Draw(t, "node")
				r.states[i] = lofamov1.State(rapid.IntRange(1, 4).Draw(t, "state"))
				r.revision += rapid.Uint64Range(1, 3).Draw(t, "revisions")
				for _, m := range replicas {
					deliver(m.Changed([]fault.NodeID{id(i)}, r))
				}
			case 2:
				primary = 1 - primary
			case 3:
				halves[rapid.IntRange(0, len(halves)-1).Draw(t, "whose")].Watch([]fault.NodeID{
					id(rapid.IntRange(0, len(halves)-1).Draw(t, "job")), id(rapid.IntRange(0, len(halves)-1).Draw(t, "job")),
				})
			case 4:
				deliver(late)
				late = nil
			default:
				digests()
			}
		}
		lossy = false
		deliver(late)
		for range 4 {
			digests()
		}
		for i, h := range halves {
			if h.Pending() {
				t.Fatalf("%s has not been told all it asks for", id(i))
			}
			for _, node := range append(h.All(), append(r.Neighbours(id(i)), id(i))...) {
				if got, want := h.Node(node).GetState(), r.states[r.index(node)]; got != want {
					t.Fatalf("%s holds %s for %s: it is %s", id(i), node, got, want)
				}
			}
		}
	})
}

// TestUpdateHasConcernedNodesOnly: a change goes to the node, its neighbours and the nodes with a job there, and to no
// others; a silent half gets nothing.
func TestUpdateHasConcernedNodesOnly(t *testing.T) {
	r, m, now := newRing(10), notify.NewMachine(config()), begin
	for i := range 10 {
		if notices := m.Heard(now, notify.Digest{Node: id(i), Epoch: 1}, r); len(notices) != 1 || notices[0].Update.GetSince() != 0 ||
			len(notices[0].Update.GetNodes()) != 3 {
			t.Fatalf("first: %v", notices)
		}
	}
	m.Interested(now, &lofamov1.Interest{Node: "n7", Epoch: 1, Serial: 1, Parts: 1, Nodes: []string{"n2", "n9"}}, r)
	r.states[2], r.revision = lofamov1.State_FAILED, 11
	var whom []fault.NodeID
	for _, notice := range m.Changed([]fault.NodeID{"n2"}, r) {
		whom = append(whom, notice.Node)
		if notice.Update.GetSince() != 10 || notice.Update.GetRevision() != 11 || len(notice.Update.GetNodes()) != 1 {
			t.Errorf("%v", notice.Update)
		}
	}
	if want := []fault.NodeID{"n1", "n2", "n3", "n7"}; !slices.Equal(whom, want) {
		t.Errorf("told %v, want %v", whom, want)
	}
	if again := m.Changed([]fault.NodeID{"n2"}, r); again != nil {
		t.Errorf("told twice: %v", again)
	}
	renewed := m.Renew(now, []fault.NodeID{"n5"}, r)
	if len(renewed) != 3 || renewed[0].Node != "n4" || renewed[0].Update.GetSince() != 0 {
		t.Errorf("renewed: %v", renewed)
	}
	now = now.Add(3 * time.Second)
	m.Expire(now)
	r.revision = 12
	if notices := m.Changed([]fault.NodeID{"n2"}, r); notices != nil || m.Len() != 0 {
		t.Errorf("%d halves, notices %v", m.Len(), notices)
	}
}

// TestHealthyJobNodeIsShownUnderMaintenance: a whole state leaves out nodes of jobs only if they have nothing to report.
func TestHealthyJobNodeIsShownUnderMaintenance(t *testing.T) {
	r, m, h := newRing(6), notify.NewMachine(config()), hostcore.NewFaultView("n0", []fault.NodeID{"n1", "n5"})
	take := func(notices []notify.Notice) {
		for _, notice := range notices {
			h.Take(notice.Update)
		}
	}
	digest := func(now time.Time) {
		take(m.Heard(now, notify.Digest{Node: "n0", Epoch: 1, Revision: h.DigestRevision(), List: h.Serial()}, r))
	}
	digest(begin)
	h.Watch([]fault.NodeID{"n2", "n3"})
	for _, msg := range h.Interest(1) {
		take(m.Interested(begin, msg, r))
	}
	r.marked = map[fault.NodeID]bool{"n3": true}
	take(m.Renew(begin, []fault.NodeID{"n3"}, r))
	if n := h.Node("n3"); !n.GetMaintenance() || n.GetState() != lofamov1.State_NORMAL {
		t.Errorf("n3 is NORMAL and under maintenance, the view has %v", n)
	}
	r.groups = []string{"plane/X=1/SERVICE_NETWORK"}
	r.revision++
	h.Neighbours([]fault.NodeID{"n1", "n5"}) // the half needs a whole state
	digest(begin.Add(time.Second))
	if n := h.Node("n2"); len(n.GetGroups()) != 1 {
		t.Errorf("n2 has a group fault, the view has %v", n)
	}
}

// TestLostRenewalIsRepeated: no digest shows the loss of an update about maintenance, because the revision is the same. So the
// next digests bring it again, for a limited number of times.
func TestLostRenewalIsRepeated(t *testing.T) {
	r, m, now := newRing(6), notify.NewMachine(config()), begin
	digest := func(revision uint64) []notify.Notice {
		now = now.Add(500 * time.Millisecond)
		return m.Heard(now, notify.Digest{Node: "n0", Epoch: 1, Revision: revision}, r)
	}
	digest(0)
	if notices := digest(10); notices != nil {
		t.Fatalf("sent again: %v", notices)
	}
	r.marked = map[fault.NodeID]bool{"n1": true}
	m.Renew(now, []fault.NodeID{"n1"}, r) // lost
	if notices := m.Heard(now.Add(100*time.Millisecond), notify.Digest{Node: "n0", Epoch: 1, Revision: 10}, r); notices != nil {
		t.Errorf("sent again at once: %v", notices)
	}
	repeated := 0
	for range 10 {
		for _, notice := range digest(10) {
			h := hostcore.NewFaultView("n0", r.Neighbours("n0"))
			if h.Take(notice.Update); !h.Node("n1").GetMaintenance() {
				t.Errorf("n1 is under maintenance, the update has %v", notice.Update)
			}
			repeated++
		}
	}
	if repeated != 2 {
		t.Errorf("the update was repeated %d times, want 2", repeated)
	}
}

// TestHalvesAheadOfStoreGetWholeMap: halves that are ahead of a restored store receive the whole earlier map, after a delay,
// because this replica's copy may only lag.
func TestHalvesAheadOfStoreGetWholeMap(t *testing.T) {
	r, m, h := newRing(3), notify.NewMachine(config()), hostcore.NewFaultView("n0", []fault.NodeID{"n1", "n2"})
	h.Take(&lofamov1.FaultUpdate{Node: "n0", Revision: 1000, Parts: 1, Nodes: []*lofamov1.NodeView{{Id: "n1", State: lofamov1.State_FAILED}}})
	put := time.Duration(0)
	for now := begin; now.Before(begin.Add(10 * time.Second)); now = now.Add(500 * time.Millisecond) {
		for _, notice := range m.Heard(now, notify.Digest{Node: "n0", Epoch: 1, Revision: h.DigestRevision()}, r) {
			if notice.Update.GetPutBack() && put == 0 {
				put = now.Sub(begin)
			}
			h.Take(notice.Update)
		}
	}
	if put < 5*time.Second || h.Revision() != 10 || h.Node("n1").GetState() != lofamov1.State_NORMAL {
		t.Errorf("put back after %s: revision %d, n1 %s", put, h.Revision(), h.Node("n1").GetState())
	}
}

// TestReplicaCutOffFromStorePutsNothingBack: a replica without a quorum has an old copy, and no restored store. When it has a
// quorum again, its copy first gets time to catch up.
func TestReplicaCutOffFromStorePutsNothingBack(t *testing.T) {
	r, m, now := newRing(3), notify.NewMachine(config()), begin
	r.cut = true
	puts := func(d time.Duration) (n int) {
		for end := now.Add(d); now.Before(end); now = now.Add(500 * time.Millisecond) {
			for _, notice := range m.Heard(now, notify.Digest{Node: "n0", Epoch: 1, Revision: 1000}, r) {
				if notice.Update.GetPutBack() {
					n++
				}
			}
		}
		return n
	}
	if n := puts(time.Minute); n > 0 {
		t.Errorf("%d updates put the view back to the copy of a replica without a quorum", n)
	}
	r.cut = false
	if n := puts(4 * time.Second); n > 0 {
		t.Errorf("%d updates put the view back before the copy had time to catch up", n)
	}
	if n := puts(4 * time.Second); n == 0 {
		t.Error("nothing puts the view back to a restored store")
	}
}

// TestRestartedHalfStartsWithoutList: a restarted half has no list and no knowledge.
func TestRestartedHalfStartsWithoutList(t *testing.T) {
	r, m := newRing(6), notify.NewMachine(config())
	m.Heard(begin, notify.Digest{Node: "n0", Epoch: 1}, r)
	m.Interested(begin, &lofamov1.Interest{Node: "n0", Epoch: 1, Serial: 1, Parts: 1, Nodes: []string{"n3"}}, r)
	notices := m.Heard(begin.Add(time.Second), notify.Digest{Node: "n0", Epoch: 2, List: 1}, r)
	if len(notices) != 1 || !notices[0].Update.GetWantInterest() || notices[0].Update.GetInterest() != 0 {
		t.Errorf("%v", notices)
	}
	if notices := m.Interested(begin, &lofamov1.Interest{Node: "n0", Epoch: 1, Serial: 2, Parts: 1}, r); notices != nil {
		t.Errorf("a list of an earlier life counts: %v", notices)
	}
}

// TestHalfThatLeavesFlippedEpochGetsFaultsOfItsJobs: no start leads to an epoch so far ahead. A bit of it flipped in the half's memory, and
// the supervisors sent the half back.
func TestHalfThatLeavesFlippedEpochGetsFaultsOfItsJobs(t *testing.T) {
	r, m := newRing(6), notify.NewMachine(config())
	m.Heard(begin, notify.Digest{Node: "n0", Epoch: 41}, r)
	m.Heard(begin.Add(time.Second), notify.Digest{Node: "n0", Epoch: 41 + 1<<28}, r)
	r.states[3] = lofamov1.State_FAILED
	now := begin.Add(2 * time.Second)
	notices := m.Interested(now, &lofamov1.Interest{Node: "n0", Epoch: 42, Serial: 1, Parts: 1, Nodes: []string{"n3"}}, r)
	if len(notices) != 1 || notices[0].Update.GetInterest() != 1 {
		t.Errorf("the list of epoch 42 is answered with %v", notices)
	}
	m.Heard(now, notify.Digest{Node: "n0", Epoch: 41 + 1<<28}, r) // late
	m.Heard(now.Add(time.Second), notify.Digest{Node: "n0", Epoch: 42, Revision: 10, List: 1}, r)
	if notices := m.Interested(now, &lofamov1.Interest{Node: "n0", Epoch: 41, Serial: 1, Parts: 1, Nodes: []string{"n3"}}, r); notices != nil {
		t.Errorf("the list of epoch 41 is answered with %v", notices)
	}
}

// TestUpdatesFitDatagrams: the messages on nodes with every possible fault fit a datagram, with a signature.
func TestUpdatesFitDatagrams(t *testing.T) {
	sick := &sickMap{*newRing(100)}
	m := notify.NewMachine(config())
	var all []string
	for i := range 100 {
		all = append(all, string(id(i)))
	}
	m.Heard(begin, notify.Digest{Node: "n0", Epoch: 1}, sick)
	for part := range 4 {
		m.Interested(begin, &lofamov1.Interest{Node: "n0", Epoch: 1, Serial: 1, Part: uint32(part), Parts: 4, Nodes: all[part*25 : (part+1)*25]},
			sick)
	}
	notices := m.Heard(begin.Add(time.Second), notify.Digest{Node: "n0", Epoch: 1, List: 1}, sick)
	if len(notices) < 20 {
		t.Fatalf("%d messages", len(notices))
	}
	for _, notice := range notices {
		if n := proto.Size(notice.Update); n > 900 || int(notice.Update.GetParts()) != len(notices) {
			t.Errorf("%d bytes, %d parts", n, notice.Update.GetParts())
		}
	}
	if len(notices) > servicenet.MaxUpdateParts {
		t.Errorf("%d parts", len(notices))
	}
}

// TestUpdatesBeyondBoundAreIncomplete: when more nodes of a job die than fit, the messages leave the others out and never call them
// healthy.
func TestUpdatesBeyondBoundAreIncomplete(t *testing.T) {
	r := newRing(servicenet.MaxInterest + 1)
	var list []fault.NodeID
	for i := range servicenet.MaxInterest {
		list = append(list, id(i+1))
	}
	h, m, now := hostcore.NewFaultView("n0", r.Neighbours("n0")), notify.NewMachine(config()), begin
	take := func(notices []notify.Notice) {
		for _, notice := range notices {
			if n := proto.Size(notice.Update); n > 900 {
				t.Fatalf("%d bytes", n)
			}
			h.Take(notice.Update)
		}
	}
	digest := func() {
		now = now.Add(500 * time.Millisecond)
		take(m.Heard(now, notify.Digest{Node: "n0", Epoch: 1, Revision: h.DigestRevision(), List: h.Serial()}, r))
	}
	digest()
	h.Watch(list)
	for _, msg := range h.Interest(1) {
		take(m.Interested(now, msg, r))
	}
	if s := h.Node("n700").GetState(); s != lofamov1.State_NORMAL {
		t.Fatalf("all are well, n700 is %s", s)
	}
	r.groups = []string{"label/rack=a-rack-with-a-long-name/SERVICE_NETWORK", "plane/X=123/SERVICE_NETWORK"}
	for i := range r.states {
		r.states[i] = lofamov1.State_FAILED
	}
	r.revision++
	take(m.Changed(list, r))
	digest()
	count := map[lofamov1.State]int{}
	for _, node := range list {
		count[h.Node(node).GetState()]++
	}
	if count[lofamov1.State_NORMAL] > 0 || count[lofamov1.State_FAILED] < 256 || h.Revision() != r.revision {
		t.Errorf("all have failed; at revision %d, told %v", h.Revision(), count)
	}
	confirmed := notify.Digest{Node: "n0", Epoch: 1, Revision: h.DigestRevision(), List: h.Serial()}
	if again := m.Heard(now.Add(time.Second), confirmed, r); again != nil {
		t.Errorf("told again, in %d messages", len(again))
	}
	r.states[1000], r.revision = lofamov1.State_SICK, r.revision+1
	take(m.Changed([]fault.NodeID{"n1000"}, r))
	if s := h.Node("n1000").GetState(); s != lofamov1.State_SICK {
		t.Errorf("n1000 is sick, told %s", s)
	}
}

// TestManyUnknownNodesHideNoFault: a user of a node watches many ids that name no node, and fault notices of another user's job still
// reach that job.
func TestManyUnknownNodesHideNoFault(t *testing.T) {
	r, m := newRing(6), notify.NewMachine(config())
	h := hostcore.NewFaultView("n0", r.Neighbours("n0"))
	list := []fault.NodeID{"n3"}
	for i := range servicenet.MaxInterest - 1 {
		list = append(list, fault.NodeID(fmt.Sprintf("a-%060d", i)))
	}
	r.states[3] = lofamov1.State_FAILED
	h.Watch(list)
	m.Heard(begin, notify.Digest{Node: "n0", Epoch: 1, List: h.Serial()}, r)
	for _, msg := range h.Interest(1) {
		for _, notice := range m.Interested(begin, msg, r) {
			h.Take(notice.Update)
		}
	}
	if s := h.Node("n3").GetState(); h.Pending() || s != lofamov1.State_FAILED {
		t.Errorf("n3 has failed, told %s", s)
	}
}

// sickMap is a map in which everything is wrong.
type sickMap struct{ ring }

func (s *sickMap) Node(node fault.NodeID) *lofamov1.NodeView {
	n := &lofamov1.NodeView{Id: string(node), State: lofamov1.State_SICK, Cause: lofamov1.Cause_HOST,
		Groups: []string{"plane/X=1234", "label/rack=r1234", "row/Y/1000,1000", "block/0,0,0..9,9,9"}}
	for c := fault.ComponentHost; c.Valid(); c++ {
		n.Faults = append(n.Faults, &lofamov1.ComponentFault{Component: uint32(c), State: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE})
	}
	return n
}

// TestQuietHalvesLearnNewestRevision: a half that no change concerns gets a bookmark, at most once a minute.
func TestQuietHalvesLearnNewestRevision(t *testing.T) {
	r, m, h := newRing(3), notify.NewMachine(config()), hostcore.NewFaultView("n0", []fault.NodeID{"n1", "n2"})
	bookmarks := 0
	for now := begin; now.Before(begin.Add(3 * time.Minute)); now = now.Add(time.Second) {
		r.revision++
		for _, notice := range m.Heard(now, notify.Digest{Node: "n0", Epoch: 1, Revision: h.DigestRevision()}, r) {
			if notice.Update.GetSince() > 0 {
				bookmarks++
			}
			h.Take(notice.Update)
		}
	}
	if behind := r.revision - h.Revision(); bookmarks < 1 || bookmarks > 3 || behind > 62 {
		t.Errorf("%d bookmarks, and %d revisions behind", bookmarks, behind)
	}
}
