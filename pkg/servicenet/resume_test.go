package servicenet

import (
	"fmt"
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// A half that resumes takes over the reports of its epoch under their ids, and the next one has the next number. To a
// half that begins cold the same reports show that its epoch was used before.
func TestRestoreOfPresentEpoch(t *testing.T) {
	kept := func(seq fault.Seq) Kept {
		r := sick(fault.ComponentMemory)
		r.ID = fault.ReportID{Origin: origin("n0-0-0/host"), Epoch: 1, Seq: seq}
		r.Observations[0].Node = "n0-0-0"
		return Kept{Report: r}
	}
	sent := func(out Output) (seqs []fault.Seq) {
		for _, r := range reportsOf(out) {
			seqs = append(seqs, r.ID.Seq)
		}
		return seqs
	}
	o := newTestOutbox(t)
	o.Resume(OutboxSnapshot{Epoch: 1, Seq: 57, Exchange: 9})
	out := o.Restore(epochStart, []Kept{kept(55), kept(57)})
	if got := sent(out); out.NewEpoch != 0 || len(got) != 2 || got[0] != 55 || got[1] != 57 {
		t.Errorf("new epoch %d, sent %d", out.NewEpoch, got)
	}
	id, _ := o.Add(epochStart, sick(fault.ComponentMemory))
	if want := (fault.ReportID{Origin: id.Origin, Epoch: 1, Seq: 58}); id != want || o.Snapshot().Seq != 58 {
		t.Errorf("%s, want %s", id, want)
	}
	if s := o.Snapshot(); s.Exchange < 9 {
		t.Errorf("%+v: an id of a path request is used again", s)
	}

	ahead := newTestOutbox(t)
	ahead.Resume(OutboxSnapshot{Epoch: 1, Seq: 56})
	if out := ahead.Restore(epochStart, []Kept{kept(55), kept(57)}); out.NewEpoch != 2 || ahead.Epoch() != 2 || ahead.Snapshot().Seq != 0 {
		t.Errorf("a number that was not given: epoch %d, %+v", out.NewEpoch, ahead.Snapshot())
	}
	cold := newTestOutbox(t)
	if out := cold.Restore(epochStart, []Kept{kept(55)}); out.NewEpoch != 2 {
		t.Errorf("cold: epoch %d", out.NewEpoch)
	}
	absurd := newTestOutbox(t)
	absurd.Resume(OutboxSnapshot{Epoch: MaxEpoch + 1, Seq: 5})
	if s := absurd.Snapshot(); s.Epoch != 1 || s.Seq != 0 {
		t.Errorf("%+v", s)
	}
}

// A bit of the epoch flipped before the half died. The next life finds reports of that epoch, so it would continue
// above it, where the supervisors refuse to follow. Their answer makes it continue at their epoch, above the reports
// of earlier lives, and renumber the others.
func TestEpochOfFlippedBit(t *testing.T) {
	const flipped = 60 | 1<<28
	kept := func(epoch fault.Epoch, seq fault.Seq) Kept {
		r := sick(fault.ComponentMemory)
		r.ID, r.Observations[0].Node = fault.ReportID{Origin: origin("n0-0-0/host"), Epoch: epoch, Seq: seq}, "n0-0-0"
		return Kept{Report: r}
	}
	o, err := NewOutbox(origin("n0-0-0/host"), 61, DefaultOutboxConfig(fault.PathDirect))
	if err != nil {
		t.Fatal(err)
	}
	o.Step(epochStart, Supervisors{Targets: []string{"s0"}, Leader: "s0"})
	if out := o.Restore(epochStart, []Kept{kept(59, 7), kept(60, 3), kept(flipped, 4)}); out.NewEpoch != flipped+1 {
		t.Fatalf("goes on from %d", out.NewEpoch)
	}
	id, _ := o.Add(epochStart, sick(fault.ComponentMemory))
	ack := &lofamov1.Ack{
		Status: lofamov1.Ack_STALE_EPOCH, Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: uint64(id.Epoch), Seqs: []uint64{uint64(id.Seq)},
		HighestEpoch: 59,
	}
	out := o.Step(epochStart, Acked{Ack: ack, Supervisor: "s0", Path: fault.PathDirect})
	var got []string
	for _, e := range o.log {
		got = append(got, fmt.Sprintf("%d:%d", e.report.ID.Epoch, e.report.ID.Seq))
	}
	if want := []string{"59:7", "60:3", "61:1", "61:2"}; out.NewEpoch != 61 || !slices.Equal(got, want) || len(out.Replaced) != 2 {
		t.Errorf("epoch %d, the log has %q, %v replaced: want epoch 61, %q", out.NewEpoch, got, out.Replaced, want)
	}
}
