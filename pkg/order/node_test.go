package order

import (
	"bytes"
	"errors"
	"slices"
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
	full  error // of the disk
	lost  error // as reported at the start
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
	b.node = NewNode(fault.Origin{Node: a, Half: fault.HalfDNP}, func() fault.Epoch { return b.epoch }, &kinds, b.disk, nil)
	out := b.node.Start(begin)
	b.lost = out.Lost
	return b.do(out)
}

func (b *bench) do(out NodeOutput) (said []*lofamov1.OrderStatus) {
	if out.Keep != nil {
		if b.full == nil {
			b.disk = out.Keep
		}
		said = append(said, b.do(b.node.Kept(out.Keep, b.full))...)
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
		if !errors.Is(b.lost, errHeld) {
			t.Fatalf("byte %d flipped: reported %v: want %v", i, b.lost, errHeld)
		}
	}
	b.gets(7, 3, "quiet", 7, "")
	if said := b.start(); len(said) != 1 || said[0].GetLost() || said[0].GetNumber() != 7 || b.lost != nil {
		t.Errorf("after the next order: %v, lost %v", said, b.lost)
	}
	unread := errors.New("input/output error")
	n := NewNode(fault.Origin{Node: a, Half: fault.HalfDNP}, func() fault.Epoch { return b.epoch }, b.node.kinds, nil, unread)
	if out := n.Start(begin); !errors.Is(out.Lost, unread) || len(out.Answer) != 1 || !out.Answer[0].GetLost() {
		t.Errorf("the disk cannot be read: %v, %v", out.Lost, out.Answer)
	}
}

// TestLostOrdersAreReportedUntilReplaced: a node repeats the report of each lost order, also after a restart in which only
// another kind has an order again.
func TestLostOrdersAreReportedUntilReplaced(t *testing.T) {
	b := newBench(t)
	lost := func(want ...string) {
		t.Helper()
		b.node.again = begin
		var got []string
		for _, st := range b.node.Tick(begin).Answer {
			if st.GetLost() {
				got = append(got, st.GetKind())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("lost: %q, want %q", got, want)
		}
	}
	other := &curve{}
	start := func() {
		var kinds Registry[PlainNode]
		kinds.Register("fan-curve", b.kind)
		kinds.Register("led", other)
		b.node = NewNode(fault.Origin{Node: a, Half: fault.HalfDNP}, func() fault.Epoch { return b.epoch }, &kinds, b.disk, nil)
		b.do(b.node.Start(begin))
	}
	b.disk = []byte("garbage")
	start()
	if at := b.node.again; !at.Equal(begin.Add(lostAgain)) {
		t.Errorf("the next report is at %s", at)
	}
	lost("fan-curve", "led")
	b.gets(7, 3, "quiet", 7, "")
	lost("led")
	start()
	lost("led")
	b.do(b.node.Order(&lofamov1.Order{Kind: "led", Node: string(a), Number: 8, Life: 3}))
	lost()
	if at := b.node.again; !at.IsZero() {
		t.Errorf("nothing is lost, and the next report is at %s", at)
	}
	start()
	lost()
}

// TestOrderThatIsNotStoredIsNotApplied: the node reports the disk's error, until an order is on disk.
func TestOrderThatIsNotStoredIsNotApplied(t *testing.T) {
	b := newBench(t)
	b.full = errors.New("no space left on device")
	b.gets(7, 3, "quiet", 7, "not stored: no space left on device")
	b.gets(7, 3, "quiet", 7, "not stored: no space left on device")
	b.applied()
	b.full = nil
	b.gets(8, 3, "quiet", 8, "")
	b.applied("quiet")
}

// TestOrderThatDiskRefusedStaysOffDisk: the next order that is stored, of another kind, does not take a refused one with
// it. After a start the node has the order that it had before.
func TestOrderThatDiskRefusedStaysOffDisk(t *testing.T) {
	b := newBench(t)
	led := &curve{}
	start := func() {
		var kinds Registry[PlainNode]
		kinds.Register("fan-curve", b.kind)
		kinds.Register("led", led)
		b.node = NewNode(fault.Origin{Node: a, Half: fault.HalfDNP}, func() fault.Epoch { return b.epoch }, &kinds, b.disk, nil)
		b.do(b.node.Start(begin))
	}
	start()
	b.gets(7, 3, "quiet", 7, "")
	b.full = errors.New("no space left on device")
	b.gets(8, 3, "cool", 8, "not stored: no space left on device")
	b.gets(9, 3, "cool", 9, "not stored: no space left on device")
	b.full = nil
	b.do(b.node.Order(&lofamov1.Order{Kind: "led", Node: string(a), Number: 3, Life: 3, Content: []byte("quiet")}))
	b.applied("quiet")
	start()
	b.applied("quiet", "quiet")
	if len(led.applied) != 2 {
		t.Errorf("the order of the other kind was applied %q: want once, and again after the start", led.applied)
	}
}

// TestLeaderRepeatsOrderThatFails: if a node could not apply an order's content, the leader repeats it under a new
// number until the node can.
func TestLeaderRepeatsOrderThatFails(t *testing.T) {
	b := newBench(t)
	plain := PlainConfig(nil)
	plain.Retry = cfg.Retry
	m := NewStanding(plain)
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
