package servicenet

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
)

func rid(o string, e fault.Epoch, s fault.Seq) fault.ReportID {
	return fault.ReportID{Origin: origin(o), Epoch: e, Seq: s}
}

func TestInbox(t *testing.T) {
	in := NewInbox(nil)
	for _, step := range []struct {
		id     fault.ReportID
		digest bool
		want   Verdict
	}{
		{rid("a/host", 5, 3), false, Fresh},
		{rid("a/host", 5, 3), false, Duplicate},
		{rid("a/dnp", 5, 3), false, Fresh}, // an origin of its own
		{rid("a/host", 5, 1), false, Fresh},
		{rid("a/host", 5, 1), false, Duplicate},
		{rid("a/host", 5, 3+WindowBits), false, Fresh},
		{rid("a/host", 5, 3), false, Duplicate}, // below the window
		{rid("a/host", 5, 4), false, Fresh},     // its last place
		{rid("a/host", 5, 4), false, Duplicate},
		{rid("a/host", 5, 9000), true, Fresh}, // digests leave the window alone
		{rid("a/host", 5, 9000), true, Duplicate},
		{rid("a/host", 5, 8999), true, Duplicate},
		{rid("a/host", 5, 5), false, Fresh},
		{rid("a/host", 4, 10000), false, Fresh}, // kept over a restart
		{rid("a/host", 4, 10000), false, Duplicate},
		{rid("a/host", 2, 1), false, Fresh},
		{rid("a/host", 1, 1), false, StaleEpoch}, // too old to distinguish from a replay
		{rid("a/host", 4, 10000), true, StaleEpoch},
		{rid("a/host", 6, 1), false, Fresh},
		{rid("a/host", 6, 1), true, Fresh},
		{rid("a/host", 5, 5), false, Duplicate},
		{rid("a/host", 5, 7), false, Fresh},
		{rid("a/host", 5, 4), false, Duplicate},
		{rid("a/host", 4, 10000), false, Duplicate},
		{rid("a/host", 4, 10001), false, Fresh},
		{rid("a/host", 2, 2), false, StaleEpoch},
		{rid("a/host", 3, 2), false, Fresh},
		{rid("a/host", 5, 20000), true, StaleEpoch},
		{rid("a/host", 6+MaxEpochJump+1, 1), false, EpochJump},
		{rid("a/host", 6, 2), false, Fresh}, // the jump left no trace
		{rid("a/host", 6+MaxEpochJump, 1), false, Fresh},
		{rid("b/host", MaxEpoch+1, 1), false, EpochJump},
		{rid("b/host", MaxEpoch, 1), false, Fresh},
	} {
		if got := in.Accept(step.id, step.digest); got != step.want {
			t.Errorf("%s (digest %t): %s, want %s", step.id, step.digest, got, step.want)
		}
	}
	if p := in.Position(origin("c/host")); p.Epoch != 0 || p.Origin != origin("c/host") {
		t.Errorf("position of an unknown origin: %+v", p)
	}
	if p := in.Position(origin("a/dnp")); p.Epoch != 5 || p.Highest != 3 || p.Window[0] != 1 {
		t.Errorf("position %+v", p)
	}
}

func TestInboxGoesOnFromSavedPositions(t *testing.T) {
	in := NewInbox(nil)
	for _, s := range []fault.Seq{1, 2, 70, 200} {
		in.Accept(rid("b/host", 2, s), false)
	}
	in.Accept(rid("a/dnp", 1, 9), true)
	text, err := json.Marshal(in.positions())
	if err != nil {
		t.Fatal(err)
	}
	var saved []InboxPosition
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	if saved[0].Origin != origin("a/dnp") || saved[1].Origin != origin("b/host") {
		t.Errorf("order: %+v", saved)
	}
	old := saved[1]
	old.Epoch = 1
	again := NewInbox(append(saved, old))
	if !reflect.DeepEqual(again.positions(), in.positions()) {
		t.Errorf("%+v, want %+v", again.positions(), in.positions())
	}
	for s, want := range map[fault.Seq]Verdict{1: Duplicate, 2: Duplicate, 3: Fresh, 70: Duplicate, 71: Fresh, 200: Duplicate, 201: Fresh} {
		if got := again.Accept(rid("b/host", 2, s), false); got != want {
			t.Errorf("#%d: %s, want %s", s, got, want)
		}
	}
}

// The windows against sets that never forget, over restarts of the half and of the supervisor.
func TestInboxAgainstNaiveSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := NewInbox(nil)
		type key struct {
			e fault.Epoch
			s fault.Seq
		}
		seen := make(map[key]bool)
		highest := make(map[fault.Epoch]fault.Seq)
		var newest fault.Epoch
		for range rapid.IntRange(1, 300).Draw(t, "n") {
			k := key{fault.Epoch(rapid.Uint64Range(1, 9).Draw(t, "epoch")), fault.Seq(rapid.Uint64Range(1, 1000).Draw(t, "seq"))}
			want := Fresh
			switch {
			case k.e+EarlierEpochs < newest:
				want = StaleEpoch
			case seen[k] || highest[k.e] >= k.s+WindowBits:
				want = Duplicate
			}
			if got := in.Accept(fault.ReportID{Origin: origin("a/host"), Epoch: k.e, Seq: k.s}, false); got != want {
				t.Fatalf("%v after %d: %s, want %s", k, newest, got, want)
			}
			if want != StaleEpoch {
				seen[k] = true
				newest, highest[k.e] = max(newest, k.e), max(highest[k.e], k.s)
			}
			if len(in.positions()) != 1 {
				t.Fatal("positions")
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				in = NewInbox(in.positions())
			}
		}
	})
}

func BenchmarkInboxAccept(b *testing.B) {
	in := NewInbox(nil)
	id := rid("n0-0-0/host", 1, 0)
	b.ReportAllocs()
	for b.Loop() {
		id.Seq++
		in.Accept(id, false)
	}
}
