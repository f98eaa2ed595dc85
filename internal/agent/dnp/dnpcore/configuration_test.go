package dnpcore

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// In these tests an envelope is its plain content. A content signed by a supervisor begins with signed.
var signed = []byte("signed ")

func openedData(j JudgeData) DataOpened {
	ev := DataOpened{ID: j.ID}
	for _, b := range j.Envelopes {
		c := &lofamov1.TorusConfiguration{}
		if !bytes.HasPrefix(b, signed) || proto.Unmarshal(b[len(signed):], c) != nil {
			return DataOpened{ID: j.ID}
		}
		ev.Parts = append(ev.Parts, c)
	}
	return ev
}

func envelopeOf(t *testing.T, c *lofamov1.TorusConfiguration) []byte {
	t.Helper()
	b, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(signed), b...)
}

// give gives a node parts of a configuration, and returns its answers.
func (w *mesh) give(n *meshNode, parts ...*lofamov1.TorusConfiguration) (answers []uint64) {
	for _, c := range parts {
		o := servicenet.Opened{Msg: &lofamov1.Message{Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: c}}, Raw: envelopeOf(w.t, c)}
		before := len(n.sealed)
		w.step(n, Opened{Opened: o})
		for _, s := range n.sealed[before:] {
			if st := s.Order.GetConfigurationStatus(); st != nil {
				answers = append(answers, st.GetNumber())
			}
		}
	}
	return answers
}

func configuration(number uint64, dims string, masks ...*lofamov1.TorusMask) *lofamov1.TorusConfiguration {
	return &lofamov1.TorusConfiguration{Number: number, Dims: dims, DelayUs: 5000, Parts: 1, Masks: masks}
}

// All nodes get the configuration that one node receives, around dead links: members, network delay, and each its mask.
// A restarted node gets it from a neighbour.
func TestConfigurationReachesAll(t *testing.T) {
	w := newMesh(t, "4x4", 1, nil)
	w.cut(w.node("0,0,0"), grid.XPlus)
	w.cut(w.node("2,2,0"), grid.YMinus)
	masked := chanmask.All.Without(grid.XPlus)
	first := configuration(7, "4x4x1", &lofamov1.TorusMask{Rank: 5, Mask: uint32(masked)})
	first.Absent, first.Parts = []uint32{3}, 2
	second := configuration(7, "4x4x1", &lofamov1.TorusMask{Rank: 15, Mask: 0x3d})
	second.Absent, second.Part, second.Parts = []uint32{9}, 1, 2
	from := w.node("1,0,0")
	if got := w.give(from, second, first, first); !slices.Equal(got, []uint64{7, 7}) {
		t.Errorf("answers %v: want one when it is whole, and one when it is asked again", got)
	}
	check := func(n *meshNode) {
		t.Helper()
		c := n.m.Configuration()
		if p := n.m.alonePlan(); p.Delay != c.Delay || !slices.Equal(p.Absent, c.Absent) {
			t.Errorf("%s: would begin a procedure by %+v", n.at, p)
		}
		if c.Number != 7 || c.Delay != 5*time.Millisecond || !slices.Equal(c.Absent, []int{3, 9}) || n.m.networkDelay() != c.Delay {
			t.Errorf("%s: %+v", n.at, c)
		}
		want := chanmask.State{Own: chanmask.All, Ordered: chanmask.All}
		switch w.dims.Rank(n.at) {
		case 5:
			want.Ordered, want.Number = masked, 7
		case 15:
			want.Ordered, want.Number = 0x3d, 7
		}
		if state, _ := n.m.Mask(); state != want {
			t.Errorf("%s: mask %+v, want %+v", n.at, state, want)
		}
	}
	w.run(configuredWait + time.Second)
	for _, n := range w.nodes {
		check(n)
	}
	late := w.node("1,1,0")
	w.begin(late, Hops{})
	if late.m.Configuration().Number != 0 {
		t.Error("it was in the copy")
	}
	w.sessions()
	w.run(configuredWait + time.Second)
	check(late)
	w.noRuleBroken()
}

// A mask in the configuration and one in an order are equivalent: the higher number wins, however it arrived.
func TestConfigurationAndMaskOrder(t *testing.T) {
	w := newMesh(t, "2", 1, nil)
	n := w.nodes[0]
	mask := func(number uint64, mask chanmask.Mask) *lofamov1.TorusConfiguration {
		var masks []*lofamov1.TorusMask
		if mask != chanmask.All {
			masks = append(masks, &lofamov1.TorusMask{Rank: 0, Mask: uint32(mask)})
		}
		return configuration(number, "2x1x1", masks...)
	}
	order := func(number uint64, mask chanmask.Mask) {
		w.step(n, Opened{Opened: servicenet.Opened{Msg: &lofamov1.Message{Body: &lofamov1.Message_MaskOrder{
			MaskOrder: &lofamov1.MaskOrder{Node: "n0-0-0", Number: number, Mask: uint32(mask)},
		}}}})
	}
	for i, tc := range []struct {
		do     func()
		number uint64
		mask   chanmask.Mask
		saves  bool
	}{
		{func() { w.give(n, mask(3, chanmask.All)) }, 0, chanmask.All, false}, // the default
		{func() { order(5, 0x3e) }, 5, 0x3e, true},
		{func() { w.give(n, mask(4, chanmask.All)) }, 5, 0x3e, false},
		{func() { w.give(n, mask(6, 0x3e)) }, 6, 0x3e, false},
		{func() { order(5, chanmask.All) }, 6, 0x3e, false},
		{func() { w.give(n, mask(7, chanmask.All)) }, 7, chanmask.All, true},
		{func() { order(6, 0x3e) }, 7, chanmask.All, false},
		{func() { order(8, 0x3c) }, 8, 0x3c, true},
	} {
		tc.do()
		state, _ := n.m.Mask()
		if state.Number != tc.number || state.Ordered != tc.mask || n.saved != tc.saves {
			t.Errorf("step %d: %+v, saved %t; want number %d, mask %s, saved %t", i, state, n.saved, tc.number, tc.mask, tc.saves)
		}
		w.step(n, MaskKept{State: state})
	}
}

// A half without a mask order may receive a copy of an old configuration, and has no number to recognise it by. So it
// asks the supervisors and waits. Their order wins, whatever its number, and so does a newer configuration. If neither
// arrives, the half applies this configuration.
func TestConfigurationArrivesWithoutRegisters(t *testing.T) {
	w := newMesh(t, "2x2", 1, nil)
	masked := chanmask.All.Without(grid.XPlus)
	old := configuration(7, "2x2x1", &lofamov1.TorusMask{Rank: 0, Mask: uint32(masked)}, &lofamov1.TorusMask{Rank: 3, Mask: uint32(masked)})
	newer := configuration(8, "2x2x1", &lofamov1.TorusMask{Rank: 0, Mask: uint32(masked)})
	asks := func(n *meshNode) (statuses int) {
		for _, s := range n.sealed {
			if s.Order.GetMaskStatus() != nil {
				statuses++
			}
		}
		return statuses
	}
	w.give(w.nodes[3], old)
	w.run(configuredWait / 2)
	for _, rank := range []int{0, 3} {
		n := w.nodes[rank]
		if state, force := n.m.Mask(); state != chanmask.Fresh() || force != chanmask.All || n.m.Configuration().Number != 7 {
			t.Errorf("node %d takes %+v, in force %s, of configuration %d", rank, state, force, n.m.Configuration().Number)
		}
		if got := asks(n); got != 1 {
			t.Errorf("node %d asks the supervisors %d times: want 1", rank, got)
		}
	}
	n := w.nodes[0]
	w.step(n, Opened{Opened: servicenet.Opened{Msg: &lofamov1.Message{Body: &lofamov1.Message_MaskOrder{
		MaskOrder: &lofamov1.MaskOrder{Node: "n0-0-0", Number: 9, Mask: 0x3b, Epoch: uint64(n.m.Epoch())},
	}}}})
	w.give(w.nodes[1], newer)
	w.run(configuredWait + time.Second)
	if state, _ := n.m.Mask(); state.Number != 9 || state.Ordered != 0x3b {
		t.Errorf("who was told by the supervisors: %+v", state)
	}
	if state, _ := w.nodes[3].m.Mask(); state != chanmask.Fresh() || w.nodes[3].m.Configuration().Number != 8 {
		t.Errorf("who is not masked by the newer one: %+v", state)
	}

	w = newMesh(t, "2x2", 1, nil)
	w.give(w.nodes[3], old)
	w.run(configuredWait - 100*time.Millisecond)
	if state, _ := w.nodes[0].m.Mask(); state != chanmask.Fresh() {
		t.Errorf("it does not wait: %+v", state)
	}
	w.run(time.Second)
	if state, _ := w.nodes[0].m.Mask(); state.Number != 7 || state.Ordered != masked {
		t.Errorf("where nothing else comes: %+v", state)
	}
	w.noRuleBroken()
}

// All nodes drop a configuration that no supervisor has signed, or that is of another torus. They accept the valid one
// that follows, though its number is lower.
func TestUnsignedConfigurationIsDropped(t *testing.T) {
	w := newMesh(t, "3x3", 1, nil)
	from := w.node("1,1,0")
	good := configuration(5, "3x3x1")
	w.give(from, good)
	w.run(time.Second)
	for i, body := range [][]byte{
		appendEnvelope(nil, []byte("forged")), []byte("nothing"), appendEnvelope(nil, envelopeOf(t, configuration(1<<40, "4x4x1"))),
		appendEnvelope(nil, envelopeOf(t, configuration(4, "3x3x1"))),
	} {
		if err := from.m.stepData(w.now, express.Publish{Topic: configurationTopic, Number: 1<<40 + uint64(i), Body: body}); err != nil {
			t.Fatal(err)
		}
		w.run(time.Second)
	}
	w.give(w.node("0,0,0"), configuration(6, "3x3x1"))
	w.run(5 * time.Second) // some know of the last one, but of no node that has it
	for _, n := range w.nodes {
		if n != from && n.m.Configuration().Number != 6 {
			t.Errorf("%s has %d", n.at, n.m.Configuration().Number)
		}
	}
	w.noRuleBroken()
}

func TestInvalidConfigurationPartIsRefused(t *testing.T) {
	w := newMesh(t, "2", 1, nil)
	for _, tc := range []struct {
		edit func(a, b *lofamov1.TorusConfiguration)
		want string
	}{
		{func(a, b *lofamov1.TorusConfiguration) { b.Number++ }, "of another one"},
		{func(a, b *lofamov1.TorusConfiguration) { b.DelayUs++ }, "of another one"},
		{func(a, b *lofamov1.TorusConfiguration) { a.Part = 1 }, "of another one"},
		{func(a, b *lofamov1.TorusConfiguration) { a.Dims = "3x1x1" }, "other torus 3x1x1: this node has 2x1x1"},
		{func(a, b *lofamov1.TorusConfiguration) { a.Absent = []uint32{2} }, "absent: given 2: want ranks below 2"},
		{func(a, b *lofamov1.TorusConfiguration) { a.Absent, b.Absent = []uint32{1}, []uint32{0} }, "ascending"},
		{func(a, b *lofamov1.TorusConfiguration) { a.Masks = []*lofamov1.TorusMask{{Rank: 2}} }, "masks: given rank 2"},
		{func(a, b *lofamov1.TorusConfiguration) {}, ""},
	} {
		a, b := configuration(3, "2x1x1"), configuration(3, "2x1x1")
		a.Parts, b.Parts, b.Part = 2, 2, 1
		tc.edit(a, b)
		_, err := w.nodes[0].m.mergeConfiguration(3, []*lofamov1.TorusConfiguration{a, b})
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}

func FuzzSplitEnvelopes(f *testing.F) {
	f.Add(appendEnvelope(appendEnvelope(nil, []byte("one")), []byte("two")))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := splitEnvelopes(b)
		if err != nil {
			return
		}
		var again []byte
		for _, e := range all {
			again = appendEnvelope(again, e)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%x comes back as %x", b, again)
		}
	})
}
