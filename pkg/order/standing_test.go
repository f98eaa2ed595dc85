package order

import (
	"math"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	a = fault.NodeID("n0")
	b = fault.NodeID("n1")
)

var (
	begin = time.Unix(1_800_000_000, 0)
	cfg   = Config[chanmask.Mask, *lofamov1.MaskStatus]{
		Retry: Retry{First: time.Second, Most: 4 * time.Second}, Usual: chanmask.All, Asks: 2,
		Holds: func(st *lofamov1.MaskStatus, mask chanmask.Mask) bool {
			return chanmask.Mask(st.GetOrdered()) == mask && !st.GetLost()
		},
		Anew: (*lofamov1.MaskStatus).GetLost,
	}
	xPlus = chanmask.All.Without(grid.XPlus)
)

// In these tests the content is a channel mask.
type (
	machine = Standing[chanmask.Mask, *lofamov1.MaskStatus]
	ordered = Order[chanmask.Mask]
)

func said(id fault.NodeID, number uint64, ordered chanmask.Mask) *lofamov1.MaskStatus {
	return &lofamov1.MaskStatus{Node: string(id), Half: lofamov1.Half_HALF_DNP, Epoch: 3, Number: number, Ordered: uint32(ordered),
		InForce: uint32(ordered)}
}

// tick expects one order, or none if node is empty.
func tick(t *testing.T, m *machine, at time.Duration, want ...ordered) {
	t.Helper()
	out, _ := m.Tick(begin.Add(at))
	if len(out) != len(want) {
		t.Fatalf("at %v: orders %+v: want %+v", at, out, want)
	}
	for i := range out {
		if out[i] != want[i] {
			t.Errorf("at %v: order %+v: want %+v", at, out[i], want[i])
		}
	}
}

// TestOrderedUntilHeard: both ends receive orders until each has confirmed the content, and are restored in the same
// way.
func TestOrderedUntilHeard(t *testing.T) {
	m := NewStanding(cfg)
	xMinus := chanmask.All.Without(grid.XMinus)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus, b: xMinus}, 7)
	tick(t, m, 0, ordered{a, 7, xPlus, 1, false, 0}, ordered{b, 7, xMinus, 1, false, 0})
	m.Heard(begin, said(a, 7, xPlus))
	tick(t, m, 999*time.Millisecond)
	tick(t, m, time.Second, ordered{b, 7, xMinus, 2, false, 0})
	tick(t, m, 2999*time.Millisecond)
	tick(t, m, 3*time.Second, ordered{b, 7, xMinus, 3, false, 0})
	tick(t, m, 7*time.Second, ordered{b, 7, xMinus, 4, false, 0})
	tick(t, m, 11*time.Second, ordered{b, 7, xMinus, 5, false, 0})
	m.Heard(begin, said(b, 7, xMinus))
	if out, wake := m.Tick(begin.Add(time.Hour)); len(out) > 0 || !wake.IsZero() {
		t.Errorf("settled, and then %+v, wake %v", out, wake)
	}
	m.Wanted(begin.Add(time.Hour), nil, 9)
	tick(t, m, time.Hour, ordered{a, 9, chanmask.All, 1, false, 3}, ordered{b, 9, chanmask.All, 1, false, 3})
	m.Heard(begin, said(a, 9, chanmask.All))
	m.Heard(begin, said(b, 9, chanmask.All))
	tick(t, m, 2*time.Hour)
}

// TestDifferingNodeIsCorrected: a node whose answer differs from the wanted content is corrected: one that has missed the
// restoration of its link, and one that has lost its mask.
func TestDifferingNodeIsCorrected(t *testing.T) {
	m := NewStanding(cfg)
	m.Wanted(begin, nil, 12)
	m.Heard(begin, said(a, 7, xPlus))
	tick(t, m, 0, ordered{a, 12, chanmask.All, 1, false, 3})
	m.Heard(begin, said(a, 12, chanmask.All))
	tick(t, m, time.Minute)
	lost := said(a, 0, chanmask.All)
	lost.Lost = true // it continues in its epoch
	m.Heard(begin.Add(time.Minute), lost)
	tick(t, m, time.Minute, ordered{a, 12, chanmask.All, 1, false, 3})
}

// TestLateAnswerIsNotTaken: the network may deliver a node's first answer, "I hold nothing", after its answer to the
// order. The reader of the answers sees each answer once, and not the late one.
func TestLateAnswerIsNotTaken(t *testing.T) {
	var taken []uint64
	late := cfg
	late.Taken = func(st *lofamov1.MaskStatus) { taken = append(taken, st.GetNumber()) }
	m := NewStanding(late)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 7)
	m.Heard(begin, said(a, 7, xPlus))
	m.Heard(begin, said(a, 0, chanmask.All))
	if !slices.Equal(taken, []uint64{7}) {
		t.Errorf("taken: the answers to orders %d: want that to 7 alone", taken)
	}
}

// TestContentOfLostStoreIsReplaced: a node holds a content from a lost store, with a number beyond those of the present store. The
// leader replaces that content.
func TestContentOfLostStoreIsReplaced(t *testing.T) {
	m := NewStanding(cfg)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{b: xPlus}, 12)
	m.Heard(begin, said(a, 5000, xPlus))
	m.Heard(begin, said(b, 12, chanmask.All)) // another content with the same number
	tick(t, m, 0, ordered{a, 5001, chanmask.All, 1, false, 3}, ordered{b, 13, xPlus, 1, false, 3})
	m.Heard(begin, said(a, 5001, chanmask.All))
	m.Heard(begin, said(b, 13, xPlus))
	m.Wanted(begin, nil, 14)
	tick(t, m, 0, ordered{b, 14, chanmask.All, 1, false, 3})
	m.Heard(begin, said(b, 14, chanmask.All))
	m.Heard(begin, said(a, math.MaxUint64, xPlus)) // nonsense: it only harms itself
	tick(t, m, time.Minute, ordered{a, 14, chanmask.All, 1, false, 3})
}

// TestUnansweredOrderIsReplaced: a node may hold the content of an order although its answer was lost, or its disk has refused the order.
// If the leader wants the former content again, it sends an order for that, until the node confirms it.
func TestUnansweredOrderIsReplaced(t *testing.T) {
	m := NewStanding(cfg)
	m.Heard(begin, said(a, 5, chanmask.All))
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 7)
	tick(t, m, 0, ordered{a, 7, xPlus, 1, false, 3})
	m.Wanted(begin, nil, 8)
	tick(t, m, 0, ordered{a, 8, chanmask.All, 1, false, 3})
	m.Heard(begin, said(a, 5, chanmask.All)) // sent before the orders arrived
	tick(t, m, time.Second, ordered{a, 8, chanmask.All, 2, false, 3})
	m.Heard(begin, said(a, 8, chanmask.All))
	tick(t, m, time.Hour)

	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 9)
	m.Wanted(begin, nil, 10) // before the order was sent
	tick(t, m, time.Hour)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 11)
	tick(t, m, time.Hour, ordered{a, 11, xPlus, 1, false, 3})
	m.Wanted(begin, nil, 12)
	restarted := said(a, 8, chanmask.All) // its life has ended before the order came
	restarted.Epoch = 4
	m.Heard(begin, restarted)
	tick(t, m, time.Hour)
}

// TestOvertakenStatusIsIgnored: a status that arrives after a newer one is ignored.
func TestOvertakenStatusIsIgnored(t *testing.T) {
	m := NewStanding(cfg)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 7)
	tick(t, m, 0, ordered{a, 7, xPlus, 1, false, 0})
	m.Heard(begin, said(a, 7, xPlus))
	m.Heard(begin, said(a, 5, chanmask.All))
	old := said(a, 8, chanmask.All)
	old.Epoch = 2
	m.Heard(begin, old)
	tick(t, m, time.Hour)
	if all := m.Said(); len(all) != 1 || all[0].GetNumber() != 7 {
		t.Errorf("said %v", all)
	}
	m.Forget(func(id fault.NodeID) bool { return id == a })
	if all := m.Said(); len(all) != 0 {
		t.Errorf("of a node that is gone: %v", all)
	}
}

// TestSilentNodeGetsFewQuestions: a node that has not answered gets a few questions, from the given time on. A node
// with a correct answer is left alone, and a silent one gets an order when its content changes.
func TestSilentNodeGetsFewQuestions(t *testing.T) {
	m := NewStanding(cfg)
	m.Wanted(begin, nil, 5)
	m.Ask(a, begin.Add(time.Minute))
	m.Ask(b, begin.Add(time.Minute))
	tick(t, m, 0)
	if _, wake := m.Tick(begin); !wake.Equal(begin.Add(time.Minute)) {
		t.Errorf("wake %v", wake)
	}
	tick(t, m, time.Minute, ordered{a, 5, chanmask.All, 1, true, 0}, ordered{b, 5, chanmask.All, 1, true, 0})
	m.Heard(begin.Add(time.Minute), said(a, 0, chanmask.All))
	m.Ask(a, begin)
	tick(t, m, 61*time.Second, ordered{b, 5, chanmask.All, 2, true, 0})
	tick(t, m, time.Hour)
	m.Wanted(begin.Add(time.Hour), map[fault.NodeID]chanmask.Mask{b: xPlus}, 6)
	tick(t, m, time.Hour, ordered{b, 6, xPlus, 1, false, 0})
}

// TestOrdersNameLife: orders name the life even if that is not the boot epoch, and a new life gets its order at
// once.
func TestOrdersNameLife(t *testing.T) {
	cfg := cfg
	cfg.Life = func(st *lofamov1.MaskStatus) uint64 { return uint64(st.GetOwn()) }
	m := NewStanding(cfg)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 7)
	tick(t, m, 0, ordered{a, 7, xPlus, 1, false, 0})
	for i, life := range []uint64{40, 20} {
		at := time.Duration(i+1) * time.Millisecond
		st := said(a, 0, chanmask.All)
		st.Own = uint32(life)
		m.Heard(begin.Add(at), st)
		tick(t, m, at, ordered{a, 7, xPlus, 1, false, life})
	}
}

// TestOrdersNameEpoch: a node without a content accepts only orders for its own boot epoch. It answers with the
// epoch and gets an order at once; so does a restarted node.
func TestOrdersNameEpoch(t *testing.T) {
	m := NewStanding(cfg)
	m.Wanted(begin, map[fault.NodeID]chanmask.Mask{a: xPlus}, 7)
	tick(t, m, 0, ordered{a, 7, xPlus, 1, false, 0})
	m.Heard(begin.Add(time.Millisecond), said(a, 0, chanmask.All))
	tick(t, m, time.Millisecond, ordered{a, 7, xPlus, 1, false, 3})
	m.Heard(begin.Add(2*time.Millisecond), said(a, 0, chanmask.All)) // the same answer again: no additional order
	tick(t, m, 2*time.Millisecond)
	m.Heard(begin.Add(3*time.Millisecond), said(a, 7, xPlus))
	tick(t, m, time.Minute)
	lost := said(a, 0, chanmask.All)
	lost.Epoch, lost.Lost = 4, true
	m.Heard(begin.Add(time.Minute), lost)
	tick(t, m, time.Minute, ordered{a, 7, xPlus, 1, false, 4})
}
