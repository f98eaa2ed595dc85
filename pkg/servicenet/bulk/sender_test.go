package bulk

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func newSender(t *testing.T, cfg SenderConfig) *Sender {
	t.Helper()
	s, err := NewSender(self, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// requested returns a good request.
func requested(t *testing.T, id byte) Requested {
	t.Helper()
	return Requested{Supervisor: "s1", Private: privateKey(t, 2), Message: &lofamov1.BulkRequest{
		Transfer: append(make([]byte, 15), id), Node: string(self.Node), Half: lofamov1.Half(self.Half), Object: "bundle",
		MaxSize: MaxSize, Key: privateKey(t, 1).PublicKey().Bytes(), ReplyTo: "s1:1"}}
}

func pulled(id byte, ranges ...*lofamov1.ChunkRange) Pulled {
	return Pulled{Supervisor: "s1", Message: &lofamov1.BulkPull{
		Transfer: append(make([]byte, 15), id), Node: string(self.Node), Half: lofamov1.Half(self.Half), ReplyTo: "s1:1", Ranges: ranges}}
}

func chunks(first, count uint32) *lofamov1.ChunkRange {
	return &lofamov1.ChunkRange{First: first, Count: count}
}

func transferOf(id byte) Transfer { return Transfer{15: id} }

func TestRequestsThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Requested)
		want   string // error announced; empty: no answer
	}{
		{"a short name", func(r *Requested) { r.Message.Transfer = []byte{1} }, ""},
		{"another node", func(r *Requested) { r.Message.Node = "n0" }, ""},
		{"another half", func(r *Requested) { r.Message.Half = lofamov1.Half_HALF_DNP }, ""},
		{"no object", func(r *Requested) { r.Message.Object = strings.Repeat("é", 200) }, "there is no such"},
		{"no size", func(r *Requested) { r.Message.MaxSize = 0 }, "max_size: given 0"},
		{"a large size", func(r *Requested) { r.Message.MaxSize = MaxSize + 1 }, "max_size: given 67108865"},
		{"no key", func(r *Requested) { r.Message.Key = nil }, "key"},
		{"a key that gives zero", func(r *Requested) { r.Message.Key = make([]byte, 32) }, "key"},
	} {
		s := newSender(t, DefaultSenderConfig())
		ev := requested(t, 1)
		tc.change(&ev)
		out := s.Step(start, ev)
		if st := s.Stats(); st.Transfers != 0 || st.Refused != 1 || len(out.Gather) != 0 || !out.Wake.IsZero() {
			t.Errorf("%s: %+v, %+v", tc.name, st, out)
		}
		var got strings.Builder
		for _, a := range out.Announce {
			got.WriteString(a.Message.GetError())
		}
		if tc.want == "" && got.String() != "" || !strings.Contains(got.String(), tc.want) || len(got.String()) > maxError ||
			len(out.Announce) > 1 {
			t.Errorf("%s: answer %q, want %q", tc.name, got.String(), tc.want)
		}
	}
}

func TestPullsThatAreRefused(t *testing.T) {
	many := make([]*lofamov1.ChunkRange, maxRanges+1)
	for i := range many {
		many[i] = chunks(0, 1)
	}
	for _, tc := range []struct {
		name string
		ev   Pulled
	}{
		{"nothing", pulled(1, chunks(0, 0))},
		{"beyond the end", pulled(1, chunks(9, 2))},
		{"far beyond the end", pulled(1, chunks(1<<32-1, 1<<32-1))},
		{"too many ranges", pulled(1, many...)},
		{"another supervisor", Pulled{pulled(1, chunks(0, 1)).Message, "s2"}},
		{"done by another", Pulled{&lofamov1.BulkPull{Transfer: pulled(1).Message.Transfer, Node: string(self.Node), Half: 1, Done: true}, "s2"}},
		{"another node", Pulled{&lofamov1.BulkPull{Transfer: pulled(1).Message.Transfer, Node: "n0", Half: 1, Done: true}, "s1"}},
		{"a short name", Pulled{&lofamov1.BulkPull{Transfer: []byte{1}, Node: string(self.Node), Half: 1, Done: true}, "s1"}},
	} {
		s := newSender(t, DefaultSenderConfig())
		s.Step(start, requested(t, 1))
		s.Step(start, Ready{transferOf(1), "x", 10 * ChunkSize})
		out := s.Step(start, tc.ev)
		if st := s.Stats(); st.Transfers != 1 || st.Refused != 1 || len(out.Chunks)+len(out.Announce)+len(out.Release) != 0 {
			t.Errorf("%s: %+v, %+v", tc.name, st, out)
		}
	}
}

func TestRoomForTransfers(t *testing.T) {
	s := newSender(t, DefaultSenderConfig())
	s.Step(start, requested(t, 1))
	s.Step(start.Add(time.Second), requested(t, 2))
	if out := s.Step(start.Add(2*time.Second), requested(t, 3)); len(out.Gather) != 0 ||
		!strings.Contains(out.Announce[0].Message.GetError(), "busy") {
		t.Fatalf("a third one: %+v", out)
	}
	foreign := requested(t, 1)
	foreign.Supervisor = "s2"
	if out := s.Step(start.Add(3*time.Second), foreign); len(out.Announce) != 0 {
		t.Fatalf("another supervisor is answered: %+v", out)
	}
	again := s.Step(start.Add(4*time.Second), requested(t, 1))
	if len(again.Gather) != 0 || len(again.Announce) != 1 || again.Announce[0].Message.GetError() != "" {
		t.Fatalf("asked again: %+v", again)
	}
	out := s.Step(start.Add(31*time.Second), requested(t, 3))
	if len(out.Gather) != 1 || len(out.Release) != 1 || out.Release[0] != transferOf(2) {
		t.Fatalf("the idle one does not make room: %+v", out)
	}
	if out := s.Step(start.Add(32*time.Second), Failed{transferOf(1), strings.Repeat("é", 100)}); len(out.Release) != 1 ||
		len(out.Announce[0].Message.GetError()) != maxError {
		t.Fatalf("failed: %+v", out)
	}
	if out := s.Step(start.Add(32*time.Second), Ready{transferOf(1), "x", 1}); len(out.Announce) != 0 {
		t.Fatalf("ready after it failed: %+v", out)
	}
	out = s.Step(start.Add(33*time.Second), requested(t, 4))
	if len(out.Gather) != 1 || len(out.Release) != 0 {
		t.Fatalf("the failed one does not make room: %+v", out)
	}
	out = s.Step(start.Add(10*time.Minute), Tick{})
	if len(out.Release) != 2 || s.Stats().Transfers != 0 || !out.Wake.IsZero() {
		t.Fatalf("at the end: %+v", out)
	}
	if _, err := s.Seal(nil, Chunk{Transfer: transferOf(4), Length: 1}, []byte{1}); err == nil {
		t.Error("a chunk of nothing is sealed")
	}
}

func TestSealChecksLength(t *testing.T) {
	s := newSender(t, DefaultSenderConfig())
	s.Step(start, requested(t, 1))
	s.Step(start, Ready{transferOf(1), "x", ChunkSize + 7})
	out := s.Step(start, pulled(1, chunks(0, 2)))
	if len(out.Chunks) != 2 || out.Chunks[1].Length != 7 || out.Chunks[1].Offset != ChunkSize {
		t.Fatalf("%+v", out.Chunks)
	}
	if _, err := s.Seal(nil, out.Chunks[1], make([]byte, 8)); err == nil {
		t.Error("a chunk of the wrong length is sealed")
	}
	if _, err := s.Seal(nil, out.Chunks[1], make([]byte, 7)); err != nil {
		t.Error(err)
	}
}

// TestAnyFailureCanBeAnnounced: the text may be of several errors, a line each, or of any length.
func TestAnyFailureCanBeAnnounced(t *testing.T) {
	for _, why := range []string{"close the archive: no space\nclose the file: no space", "\xff", "x" + strings.Repeat("é", maxError)} {
		s := newSender(t, DefaultSenderConfig())
		s.Step(start, requested(t, 1))
		out := s.Step(start, Failed{transferOf(1), why})
		if len(out.Announce) != 1 {
			t.Fatalf("%+v", out)
		}
		text := out.Announce[0].Message.GetError()
		if text == "" || len(text) > maxError || strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text) {
			t.Errorf("%q: announced as %q", why, text)
		}
	}
}

// TestSenderKeepsRateAndBurst asks for more than there is room for, by both kinds of route, and never gets more than
// burst and rate allow in any interval, nor much less.
func TestSenderKeepsRateAndBurst(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		via := rapid.SampledFrom([]string{"", "a"}).Draw(rt, "via")
		cfg := DefaultSenderConfig()
		rate, burst := cfg.DirectRate, cfg.DirectBurst
		if via != "" {
			rate, burst = cfg.TorusRate, cfg.TorusBurst
		}
		s := newSender(t, cfg)
		var at []time.Duration
		now := start
		take := func(out SenderOutput) time.Time {
			for range out.Chunks {
				at = append(at, now.Sub(start))
			}
			return out.Wake
		}
		for id := byte(1); id <= 2; id++ {
			ev := requested(t, id)
			ev.Message.Via = via
			take(s.Step(now, ev))
			take(s.Step(now, Ready{transferOf(id), "x", MaxSize}))
		}
		first := uint32(0)
		for now.Sub(start) < 3*time.Second {
			if s.Stats().Queued < maxQueue {
				for id := byte(1); id <= 2; id++ {
					ev := pulled(id, chunks(first, 400))
					ev.Message.Via = via
					take(s.Step(now, ev))
				}
				first += 400
			}
			now = take(s.Step(now, Tick{})).Add(time.Duration(rapid.IntRange(0, 2000).Draw(rt, "late")) * time.Microsecond)
		}
		for i, j := 0, 0; i < len(at); i++ {
			for j < len(at) && at[j]-at[i] < time.Second {
				j++
			}
			if n := j - i; n > rate+burst {
				rt.Fatalf("%d chunks in the second from %v: rate %d, burst %d", n, at[i], rate, burst)
			}
		}
		if least := 3*rate - rate/10; len(at) < least {
			rt.Fatalf("%d chunks in 3 s, want %d", len(at), least)
		}
	})
}

func TestSenderConfigRefusals(t *testing.T) {
	if err := DefaultSenderConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := SenderConfig{Checksum: 99}.Validate()
	for _, field := range []string{"Objects", "Transfers", "Life", "Idle", "DirectRate", "TorusRate", "DirectBurst", "TorusBurst",
		"Checksum"} {
		if err == nil || !strings.Contains(err.Error(), field+": given") {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	if _, err := NewSender(self, SenderConfig{}); err == nil {
		t.Error("a sender without a configuration")
	}
	if _, err := NewSender(fault.Origin{}, DefaultSenderConfig()); err == nil {
		t.Error("a sender of nobody")
	}
}
