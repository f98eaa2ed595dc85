package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// wordOfOne is a word for one node, n0, that records the sent orders.
type wordOfOne struct {
	want chanmask.Mask

	mu    sync.Mutex
	term  uint64
	ready bool
	begun int
	sent  []string
}

func (w *wordOfOne) begin(context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	return w.ready
}

func (w *wordOfOne) lead() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.term
}

func (w *wordOfOne) send(o order.Order[chanmask.Mask]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, fmt.Sprintf("%s %d %s try %d life %d", o.Node, o.Number, o.Want, o.Try, o.Life))
}

// set applies a change, and returns the orders sent, and how often it has begun, since the last call.
func (w *wordOfOne) set(change func()) (sent []string, begun int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	sent, begun = w.sent, w.begun
	w.sent, w.begun = nil, 0
	return sent, begun
}

func (*wordOfOne) said(st *lofamov1.MaskStatus) bool { return st.GetNode() == "n0" }

func (w *wordOfOne) follow(_ context.Context, m *order.Standing[chanmask.Mask, *lofamov1.MaskStatus]) time.Time {
	m.Wanted(time.Now(), map[fault.NodeID]chanmask.Mask{"n0": w.want}, 7)
	return time.Time{}
}

func (*wordOfOne) changed() <-chan struct{} { return nil }

func (*wordOfOne) message(order.Order[chanmask.Mask]) *lofamov1.Message { return nil }

// A replica sends instructions while it leads and knows them. It starts over with each of its own terms: statuses
// from before may be outdated, because another leader may have given other instructions. Terms that follow one
// another between two checks are two terms.
func TestOrdersFollowTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wordOfOne{want: 0x3e}
		k := newOrders(&Supervisor{site: site{logger: slog.New(slog.DiscardHandler)}}, "masks", order.Config[chanmask.Mask, *lofamov1.MaskStatus]{
			Retry: order.Retry{First: 10 * time.Second, Most: time.Minute}, Usual: chanmask.All, Anew: (*lofamov1.MaskStatus).GetLost,
			Holds: func(st *lofamov1.MaskStatus, mask chanmask.Mask) bool {
				return chanmask.Mask(st.GetOrdered()) == mask && !st.GetLost()
			},
		}, w)
		k.term, k.send = w.lead, w.send
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go k.run(ctx)
		// after applies a change, and checks the orders sent by two checks later.
		after := func(what string, change func(), want ...string) (begun int) {
			t.Helper()
			w.set(change)
			time.Sleep(2 * orderTime) // of the bubble's clock
			synctest.Wait()
			sent, begun := w.set(func() {})
			if !slices.Equal(sent, want) {
				t.Errorf("%s: sent %q, want %q", what, sent, want)
			}
			return begun
		}
		says := func(number uint64, mask chanmask.Mask) func() {
			return func() { k.Heard(&lofamov1.MaskStatus{Node: "n0", Epoch: 3, Number: number, Ordered: uint32(mask)}) }
		}
		leads := func(term uint64) func() { return func() { w.term = term } }
		first := "n0 7 " + chanmask.Mask(0x3e).String() + " try 1 life 0"
		after("another one leads", says(4, chanmask.All))
		after("it does not know yet what to tell", leads(5))
		after("it leads", func() { w.ready = true }, first)
		after("the node has it", says(7, 0x3e))
		after("the lead is lost", leads(0))
		after("what another one has told it", says(9, chanmask.All))
		after("the lead is regained", leads(8), first)
		after("the node says what another one has told it", says(9, chanmask.All), "n0 10 "+chanmask.Mask(0x3e).String()+" try 1 life 3")
		if begun := after("the node has it again", says(10, 0x3e)); begun != 0 {
			t.Errorf("it has begun %d times within a term", begun)
		}
		if begun := after("another one has led between two looks", leads(11), first); begun != 1 {
			t.Errorf("it has begun %d times: want once", begun)
		}
	})
}
