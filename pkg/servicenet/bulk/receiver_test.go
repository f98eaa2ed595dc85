package bulk

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func newReceiver(t *testing.T) (*Receiver, *lofamov1.BulkAnnounce) {
	t.Helper()
	w := newWorld(t, 1, 10*ChunkSize, Way{}, Way{"a"})
	r, out, err := NewReceiver(start, w.rcfg, w.job)
	if err != nil || len(out.Send) != 1 || out.Send[0].Message.GetBulkRequest() == nil {
		t.Fatalf("%+v, %v", out, err)
	}
	id := r.Transfer()
	return r, &lofamov1.BulkAnnounce{Transfer: id[:], Node: string(self.Node), Half: lofamov1.Half(self.Half), Name: "x",
		Size: 10 * ChunkSize, ChunkSize: ChunkSize, Key: privateKey(t, 9).PublicKey().Bytes(), ChecksumAlgorithm: 1}
}

// TestLaterAnnouncementRestartsOrIsIgnored changes the second of two announcements: one that does not fit is ignored, an older one changes
// nothing, and another object restarts the transfer.
func TestLaterAnnouncementRestartsOrIsIgnored(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(first, second *lofamov1.BulkAnnounce)
		ignored uint64
		restart bool
		result  Result
	}{
		{"repeated", func(_, _ *lofamov1.BulkAnnounce) {}, 0, false, 0},
		{"complete", func(_, m *lofamov1.BulkAnnounce) { m.Complete, m.Checksum = true, 5 }, 0, false, 0},
		{"older", func(f, _ *lofamov1.BulkAnnounce) { f.Complete = true }, 0, false, 0},
		{"much older", func(_, m *lofamov1.BulkAnnounce) { m.Size = 0 }, 0, false, 0},
		{"gathered now", func(f, _ *lofamov1.BulkAnnounce) { f.Size = 0 }, 0, false, 0},
		{"another transfer", func(_, m *lofamov1.BulkAnnounce) { m.Transfer = make([]byte, 16) }, 1, false, 0},
		{"another node", func(_, m *lofamov1.BulkAnnounce) { m.Node = "n0" }, 1, false, 0},
		{"another half", func(_, m *lofamov1.BulkAnnounce) { m.Half = lofamov1.Half_HALF_DNP }, 1, false, 0},
		{"no chunks", func(_, m *lofamov1.BulkAnnounce) { m.ChunkSize = 0 }, 1, false, 0},
		{"large chunks", func(_, m *lofamov1.BulkAnnounce) { m.ChunkSize = ChunkSize + 1 }, 1, false, 0},
		{"too many chunks", func(_, m *lofamov1.BulkAnnounce) { m.ChunkSize, m.Size = 1, MaxSize }, 1, false, 0},
		{"an unknown checksum", func(_, m *lofamov1.BulkAnnounce) { m.ChecksumAlgorithm = 99 }, 1, false, 0},
		{"a bad key", func(f, _ *lofamov1.BulkAnnounce) { f.Key = make([]byte, 32) }, 1, false, 0},
		{"another key", func(_, m *lofamov1.BulkAnnounce) { m.Key[0] ^= 1 }, 0, true, 0},
		{"another size", func(_, m *lofamov1.BulkAnnounce) { m.Size++ }, 0, true, 0},
		{"another chunk size", func(_, m *lofamov1.BulkAnnounce) { m.ChunkSize-- }, 0, true, 0},
		{"another algorithm", func(_, m *lofamov1.BulkAnnounce) { m.ChecksumAlgorithm = 2 }, 0, true, 0},
		{"another checksum", func(f, m *lofamov1.BulkAnnounce) { f.Complete, m.Complete, m.Checksum = true, true, 5 }, 0, true, 0},
		{"not known any more", func(_, m *lofamov1.BulkAnnounce) { m.Error = unknownTransfer }, 0, true, 0},
		{"too large", func(_, m *lofamov1.BulkAnnounce) { m.Size = MaxSize + 1 }, 0, false, Refused},
		{"an error", func(_, m *lofamov1.BulkAnnounce) { m.Error = "disk full" }, 0, false, Refused},
		{"an error at first", func(f, _ *lofamov1.BulkAnnounce) { f.Error = unknownTransfer }, 0, false, Refused},
	} {
		r, first := newReceiver(t)
		second := proto.Clone(first).(*lofamov1.BulkAnnounce)
		tc.change(first, second)
		var result Result
		restart := false
		for i, m := range []*lofamov1.BulkAnnounce{first, second} {
			out := r.Step(start.Add(time.Duration(i+1)*time.Millisecond), Announced{m, Way{}})
			restart = restart || out.Restart
			if out.Outcome != nil {
				result = out.Outcome.Result
			}
		}
		p := r.Progress()
		if p.Ignored != tc.ignored || restart != tc.restart || result != tc.result || (p.Attempt == 2) != tc.restart {
			t.Errorf("%s: ignored %d, restart %v, result %v; %+v", tc.name, p.Ignored, restart, result, p)
		}
	}
}

func TestNothingFollowsEndOfTransfer(t *testing.T) {
	r, m := newReceiver(t)
	if out := r.Step(start, Cancel{}); out.Outcome == nil || out.Outcome.Result != Cancelled || !out.Wake.IsZero() {
		t.Fatalf("%+v", out)
	}
	for _, ev := range []ReceiverEvent{Tick{}, Announced{m, Way{}}, Arrived{[]byte{chunkMark}, Way{}}, Consumed{1}, Cancel{}} {
		if out := r.Step(start.Add(time.Hour), ev); len(out.Send) != 0 || out.Outcome != nil || !out.Wake.IsZero() {
			t.Errorf("%T: %+v", ev, out)
		}
	}
}

// TestChunkOfWrongLengthIsRefused: the half sealed the chunk, but its length contradicts the announcement.
func TestChunkOfWrongLengthIsRefused(t *testing.T) {
	r, m := newReceiver(t)
	r.Step(start, Announced{m, Way{}})
	id := r.Transfer()
	key, err := NewKey(privateKey(t, 9), r.job.Exchanges[0].Private.PublicKey().Bytes(), id, self, "s1")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		index  uint32
		length int
	}{{0, 1}, {0, ChunkSize - 1}, {9, 1}} {
		if out := r.Step(start, Arrived{sealed(t, key, tc.index, make([]byte, tc.length)), Way{}}); len(out.Deliver) != 0 {
			t.Errorf("%+v is delivered", tc)
		}
	}
	if out := r.Step(start, Arrived{sealed(t, key, 0, make([]byte, ChunkSize)), Way{}}); len(out.Deliver) != 1 || r.Progress().Malformed != 3 {
		t.Errorf("%+v", r.Progress())
	}
	if out := r.Step(start, Consumed{7}); out.Outcome != nil || r.window.consumed != 1 {
		t.Errorf("%d are consumed", r.window.consumed)
	}
}

func TestReceiverRefusesInvalidConfig(t *testing.T) {
	if err := DefaultReceiverConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := ReceiverConfig{GiveUp: -time.Second, MaxTimeout: -1, MaxReturn: -1, KeepAlive: -1, MaxDirect: -1, MaxTorus: -1,
		Buffer: -1}.Validate()
	for _, field := range []string{"RequestTimeout", "MinTimeout", "MaxTimeout", "GatherPoll", "KeepAlive", "GiveUp", "Silences",
		"ReturnAfter",
		"MaxReturn", "MinWindow", "MaxDirect", "MaxTorus", "Buffer"} {
		if err == nil || !strings.Contains(err.Error(), field+": given") {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	err = Job{}.Validate()
	for _, field := range []string{"Origin", "Object", "MaxSize", "Supervisor", "ReplyTo", "Ways", "Exchanges[0]", "Exchanges[1]",
		"Exchanges"} {
		if err == nil || !strings.Contains(err.Error(), field+": given") {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	good := newWorld(t, 1, 1, Way{}).job
	twice := good
	twice.Ways = []Way{{"a"}, {}, {"a"}}
	if err := twice.Validate(); err == nil || !strings.Contains(err.Error(), "via a") {
		t.Errorf("a way twice: %v", err)
	}
	if _, _, err := NewReceiver(start, ReceiverConfig{}, good); err == nil {
		t.Error("a receiver without a configuration")
	}
	if _, _, err := NewReceiver(start, DefaultReceiverConfig(), Job{}); err == nil {
		t.Error("a receiver without a job")
	}
	if got := Result(99).String() + Complete.String() + Result(0).String(); got != "Result(99)completeResult(0)" {
		t.Error(got)
	}
}
