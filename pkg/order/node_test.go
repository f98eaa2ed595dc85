package order

import (
	"bytes"
	"errors"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// curve is a plain kind: the curve of a node's fans.
type curve struct {
	applied []Content
	err     error
}

func (*curve) Validate(c Content) error {
	if c != "" && c != "quiet" && c != "cool" {
		return errors.New(`curve: given "` + string(c) + `": want quiet or cool`)
	}
	return nil
}

func (k *curve) Apply(c Content) error {
	k.applied = append(k.applied, c)
	return k.err
}

// bench is a node with the kind fan-curve, whose disk and handler finish at once.
type bench struct {
	t     *testing.T
	kind  *curve
	node  *Node
	disk  []byte
	epoch fault.Epoch
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, kind: &curve{}, epoch: 3}
	b.start()
	return b
}

// start begins a life with the stored orders, and returns the node's answers.
func (b *bench) start() []*lofamov1.OrderStatus {
	var kinds Registry[PlainNode]
	kinds.Register("fan-curve", b.kind)
	b.node, _ = NewNode(fault.Origin{Node: a, Half: fault.HalfDNP}, func() fault.Epoch { return b.epoch }, &kinds, b.disk)
	return b.do(b.node.Start())
}

func (b *bench) do(out NodeOutput) (said []*lofamov1.OrderStatus) {
	if out.Keep != nil {
		b.disk = out.Keep
		said = append(said, b.do(b.node.Kept(out.Keep))...)
	}
	for _, ap := range out.Apply {
		h, _ := b.node.kinds.Of(ap.Kind)
		said = append(said, b.do(b.node.Applied(ap, h.Apply(ap.Content)))...)
	}
	return append(said, out.Answer...)
}

// gets sends the node an order and expects one answer.
func (b *bench) gets(number, life uint64, content string, wantNumber uint64, wantErr string) {
	b.t.Helper()
	said := b.do(b.node.Order(&lofamov1.Order{Kind: "fan-curve", Node: string(a), Number: number, Life: life, Content: []byte(content)}))
	if len(said) != 1 || said[0].GetNumber() != wantNumber || said[0].GetError() != wantErr || said[0].GetNode() != string(a) ||
		said[0].GetEpoch() != uint64(b.epoch) {
		b.t.Errorf("order %d: said %v, want number %d, error %q", number, said, wantNumber, wantErr)
	}
}

func (b *bench) applied(want ...Content) {
	b.t.Helper()
	if len(b.kind.applied) != len(want) {
		b.t.Fatalf("applied %q, want %q", b.kind.applied, want)
	}
	for i := range want {
		if b.kind.applied[i] != want[i] {
			b.t.Fatalf("applied %q, want %q", b.kind.applied, want)
		}
	}
}

// TestNodeTakesOrderOnce: a node accepts an order once, answers every copy, refuses old and invalid orders, and applies
// its held orders again after a start.
func TestNodeTakesOrderOnce(t *testing.T) {
	b := newBench(t)
	b.gets(7, 0, "quiet", 0, "") // the answer gives the life to name
	b.gets(7, 2, "quiet", 0, "") // a copy of an order to an earlier life
	b.applied()
	b.gets(7, 3, "quiet", 7, "")
	b.gets(7, 3, "quiet", 7, "")
	b.gets(6, 3, "cool", 7, "")
	b.gets(7, 3, "cool", 7, "")
	b.applied("quiet")
	b.gets(8, 3, "loud", 7, `curve: given "loud": want quiet or cool`)
	b.gets(9, 0, "cool", 9, "") // its number shows that it is newer
	b.applied("quiet", "cool")

	b.epoch = 4
	if said := b.start(); len(said) != 1 || said[0].GetNumber() != 9 || said[0].GetSum() != Sum("cool") {
		t.Errorf("at the start: %v", said)
	}
	b.applied("quiet", "cool", "cool")
	b.gets(10, 4, "", 10, "")
	b.applied("quiet", "cool", "cool", "")
}

// TestNodeRefusesStrangeOrders: an order for another node, and one of an unknown kind, change nothing.
func TestNodeRefusesStrangeOrders(t *testing.T) {
	b := newBench(t)
	if said := b.do(b.node.Order(&lofamov1.Order{Kind: "fan-curve", Node: "n9", Number: 1, Life: 3})); len(said) != 0 {
		t.Errorf("answered an order for another node: %v", said)
	}
	said := b.do(b.node.Order(&lofamov1.Order{Kind: "no-such", Node: string(a), Number: 1, Life: 3}))
	if len(said) != 1 || said[0].GetError() == "" || said[0].GetNumber() != 0 {
		t.Errorf("an unknown kind: %v", said)
	}
	b.applied()
}

// TestNodeAsksAgainForLostOrders: a node that cannot read its stored orders reports it, and holds the next order.
// Damaged orders are never applied.
func TestNodeAsksAgainForLostOrders(t *testing.T) {
	b := newBench(t)
	b.gets(7, 3, "quiet", 7, "")
	whole := b.disk
	for i := range whole {
		b.disk = append([]byte(nil), whole...)
		b.disk[i] ^= 1
		b.kind.applied = nil
		said := b.start()
		if len(said) != 1 || !said[0].GetLost() || said[0].GetNumber() != 0 || len(b.kind.applied) > 0 {
			t.Fatalf("byte %d flipped: said %v, applied %q", i, said, b.kind.applied)
		}
	}
	b.gets(7, 3, "quiet", 7, "")
	if said := b.start(); len(said) != 1 || said[0].GetLost() || said[0].GetNumber() != 7 {
		t.Errorf("after the next order: %v", said)
	}
}

// TestLeaderRepeatsOrderThatFails: if a node could not apply an order's content, the leader repeats it under a new
// number until the node can.
func TestLeaderRepeatsOrderThatFails(t *testing.T) {
	b := newBench(t)
	m := NewStanding(PlainConfig(cfg.Retry))
	m.Wanted(begin, map[fault.NodeID]Content{a: "quiet"}, 7)
	now, sends := begin, 0
	run := func() {
		for range 4 {
			due, wake := m.Tick(now)
			for _, o := range due {
				sends++
				for _, st := range b.do(b.node.Order(PlainMessage("fan-curve", o).GetOrder())) {
					m.Heard(now, st)
				}
			}
			if wake.IsZero() {
				return
			}
			now = wake
		}
	}
	b.kind.err = errors.New("no fan answers")
	run()
	if sends < 3 || len(b.kind.applied) < 2 {
		t.Errorf("%d sends, applied %q: want it tried again", sends, b.kind.applied)
	}
	b.kind.err = nil
	run()
	if due, wake := m.Tick(now.Add(1)); len(due) > 0 || !wake.IsZero() {
		t.Errorf("in force, and then %v, wake %v", due, wake)
	}
}

// FuzzStoredOrders: the node starts with any file on disk, and can read the orders that it stores afterwards.
func FuzzStoredOrders(f *testing.F) {
	b := newBench(&testing.T{})
	b.gets(7, 3, "quiet", 7, "")
	f.Add(b.disk)
	f.Add([]byte(heldMagic))
	f.Fuzz(func(t *testing.T, stored []byte) {
		b := newBench(t)
		b.disk = stored
		b.start()
		b.do(b.node.Order(&lofamov1.Order{Kind: "fan-curve", Node: string(a), Number: 1 << 63, Life: 3, Content: []byte("cool")}))
		if _, err := decodeHeld(b.disk); err != nil && !bytes.Equal(b.disk, stored) && len(b.disk) <= MaxHeld {
			t.Errorf("the node cannot read what it stored: %v", err)
		}
	})
}
