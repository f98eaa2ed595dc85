package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// contentOfOne is the content of one node, n0. It records the sent orders, as a Sender.
type contentOfOne struct {
	want chanmask.Mask

	mu    sync.Mutex
	ready bool
	begun int
	sent  []string
}

func (w *contentOfOne) begin(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	if !w.ready {
		return errors.New("the store does not answer")
	}
	return nil
}

func (w *contentOfOne) Order(node fault.NodeID, _ string, body func(string) *lofamov1.Message, _ []fault.NodeID) {
	o := body("").GetMaskOrder()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, fmt.Sprintf("%s %d %s life %d", node, o.GetNumber(), chanmask.Mask(o.GetMask()), o.GetEpoch()))
}

func (*contentOfOne) Direct(fault.NodeID) bool { return true }

// set applies a change, and returns the orders sent, and how often it has begun, since the last call.
func (w *contentOfOne) set(change func()) (sent []string, begun int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	sent, begun = w.sent, w.begun
	w.sent, w.begun = nil, 0
	return sent, begun
}

func (*contentOfOne) status(m *lofamov1.Message) *lofamov1.MaskStatus { return m.GetMaskStatus() }

func (*contentOfOne) said(st *lofamov1.MaskStatus) bool { return st.GetNode() == "n0" }

func (w *contentOfOne) follow(_ context.Context, m *order.Standing[chanmask.Mask, *lofamov1.MaskStatus]) error {
	m.Wanted(time.Now(), map[fault.NodeID]chanmask.Mask{"n0": w.want}, 7)
	return nil
}

func (*contentOfOne) changed() <-chan struct{} { return nil }

func (*contentOfOne) message(o order.Order[chanmask.Mask]) *lofamov1.Message {
	return maskOrder(o)
}

// A replica sends orders in its own terms, once it has loaded their contents. Each term starts over: reports from
// before may be outdated, because another leader may have given other orders.
func TestEachTermStartsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &contentOfOne{want: 0x3e}
		cfg := &Config{Sender: w, Logger: slog.New(slog.DiscardHandler), Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, nil)}
		kind := newStanding(cfg, "mask", order.Config[chanmask.Mask, *lofamov1.MaskStatus]{
			Usual: chanmask.All, Anew: (*lofamov1.MaskStatus).GetLost,
			Holds: func(st *lofamov1.MaskStatus, mask chanmask.Mask) bool {
				return chanmask.Mask(st.GetOrdered()) == mask && !st.GetLost()
			},
		}, w)
		kind.machine.Retry = order.Retry{First: 10 * time.Second, Most: time.Minute}
		k := &worker{name: "mask", kind: kind, cfg: cfg}
		c := &Channel{cfg: *cfg, workers: []*worker{k}}
		end := func() {}
		defer func() { end() }()
		loaded := make(chan struct{})
		await := func(ctx context.Context, _ uint64) error {
			select {
			case <-loaded:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		leads := func(term uint64) func() {
			return func() {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					c.Lead(ctx, term, await)
				}()
				end = func() {
					cancel()
					<-ended
				}
			}
		}
		// after applies a change, and checks the orders sent by two checks later.
		after := func(what string, change func(), want ...string) (begun int) {
			t.Helper()
			change()
			time.Sleep(2 * checkEvery) // of the bubble's clock
			synctest.Wait()
			sent, begun := w.set(func() {})
			if !slices.Equal(sent, want) {
				t.Errorf("%s: sent %q, want %q", what, sent, want)
			}
			return begun
		}
		says := func(number uint64, mask chanmask.Mask) func() {
			return func() {
				k.take(&lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: &lofamov1.MaskStatus{
					Node: "n0", Epoch: 3, Number: number, Ordered: uint32(mask),
				}}})
			}
		}
		mask := chanmask.Mask(0x3e).String()
		first := "n0 7 " + mask + " life 0"
		after("another one leads", says(4, chanmask.All))
		if begun := after("the term is not loaded yet", leads(5)); begun != 0 {
			t.Errorf("it has begun %d times before the term is loaded", begun)
		}
		after("the lead is lost before the term is loaded", func() { end() })
		after("the term is not loaded yet", leads(6))
		after("the contents are not loaded yet", func() { close(loaded) })
		after("it leads", func() { w.set(func() { w.ready = true }) }, first)
		after("the node has it", says(7, 0x3e))
		after("the lead is lost", func() { end() })
		after("the node reports another leader's order", says(9, chanmask.All))
		after("the lead is regained", leads(8), first)
		after("the node reports another leader's order", says(9, chanmask.All), "n0 10 "+mask+" life 3")
		if begun := after("the node has it again", says(10, 0x3e)); begun != 0 {
			t.Errorf("it has begun %d times within a term", begun)
		}
		if begun := after("another term follows at once", func() { end(); leads(11)() }, first); begun != 1 {
			t.Errorf("it has begun %d times: want once", begun)
		}
	})
}
