package spool

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

func reopen(t testing.TB, cfg Config) (*Spool, []Record) {
	t.Helper()
	s, got, err := open(cfg, quick(), attach)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, got
}

func sync1(t testing.TB, s *Spool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testBound)
	defer cancel()
	must(t, s.Sync(ctx))
}

func TestKeepsOverRestarts(t *testing.T) {
	cfg, _ := config(t)
	s, got := reopen(t, cfg)
	if len(got) != 0 {
		t.Fatalf("a new spool holds %s", names(got))
	}
	s.Append(rec(1, 1, 100))
	s.Append(Record{ID: id(1, 2), Payload: []byte("b")})
	s.Append(rec(1, 3, 100))
	s.Free([]fault.ReportID{id(1, 1), id(1, 1), id(1, 77), {Origin: fault.Origin{Node: "x", Half: fault.HalfDNP}, Epoch: 1, Seq: 2}})
	sync1(t, s)
	if st := s.Status(); st.Depth != 2 || st.Freed != 1 || st.Appended != 3 || st.Err != "" || st.Lost != 0 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	s.Append(rec(1, 9, 1))
	if s.Status().Lost != 1 {
		t.Error("appended after Close, and not counted")
	}
	for life := range 12 {
		s, got := reopen(t, cfg)
		if names(got) != "1#2 1#3" || string(got[0].Payload) != "b" || got[0].Boot != cfg.Boot || got[0].At != 42 || got[1].At != 3 {
			t.Fatalf("life %d: %+v", life, got)
		}
		if st := s.Status(); st.Recovered != 2 || st.Damaged != 0 || st.Depth != 2 {
			t.Fatalf("life %d: %+v", life, st)
		}
		must(t, s.Close())
	}
	if info, err := os.Stat(cfg.Path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != cfg.Size {
		t.Errorf("%v, %v", info, err)
	}
}

// TestUnfreedReportSurvivesManyLaps: an un-freed report is carried along, however often the ring goes round.
func TestUnfreedReportSurvivesManyLaps(t *testing.T) {
	cfg, _ := config(t)
	s, _ := reopen(t, cfg)
	s.Append(rec(1, 1, 777))
	for seq := fault.Seq(2); seq < 3000; seq++ {
		s.Append(rec(1, seq, 1000))
		if seq >= 12 {
			s.Free([]fault.ReportID{id(1, seq-10)})
		}
		if seq%20 == 0 {
			sync1(t, s)
		}
		if seq%500 == 0 {
			must(t, s.Close())
			var got []Record
			s, got = reopen(t, cfg)
			if len(got) != 11 || got[0].ID != id(1, 1) || !bytes.Equal(got[0].Payload, payload(1, 1, 777)) || got[1].ID != id(1, seq-9) ||
				got[10].ID != id(1, seq) {
				t.Fatalf("at %d: %s", seq, names(got))
			}
		}
	}
	if st := s.Status(); st.Lost != 0 || st.Full != 0 || st.Err != "" || st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
}

func TestNewerFormReplaces(t *testing.T) {
	cfg, _ := config(t)
	s, _ := reopen(t, cfg)
	for _, text := range []string{"a", "b", "c"} {
		s.Append(Record{ID: id(1, 1), Payload: []byte(text)})
		if text != "b" {
			sync1(t, s)
		}
	}
	must(t, s.Close())
	s, got := reopen(t, cfg)
	if len(got) != 1 || string(got[0].Payload) != "c" || s.Status().Depth != 1 {
		t.Fatalf("%+v", got)
	}
	s.Append(Record{ID: id(1, 1), Payload: []byte("d")})
	s.Free([]fault.ReportID{id(1, 1)})
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != 0 {
		t.Errorf("%s is back", names(got))
	}
}

func TestFull(t *testing.T) {
	cfg, log := config(t)
	s, _, err := open(cfg, func() timing { tm := quick(); tm.maxWaiting = 5; return tm }(), attach)
	must(t, err)
	seq := fault.Seq(0)
	for s.Status().Err == "" {
		seq++
		s.Append(rec(1, seq, 2000))
		if s.Status().Depth > 100 {
			t.Fatal("half of the ring holds 100 reports of 2000 bytes")
		}
		_ = syncOrFull(s)
	}
	if st := s.Status(); !strings.HasPrefix(st.Err, "full: ") || st.Full == 0 || st.Lost != 0 || st.Bytes > cfg.Size/2 {
		t.Errorf("%+v", st)
	}
	for range 10 {
		seq++
		s.Append(rec(1, seq, 2000))
	}
	if st := s.Status(); st.Lost != 6 { // one waits already
		t.Errorf("%d lost, want 6", st.Lost)
	}
	kept := s.Status().Depth
	var ids []fault.ReportID
	for n := range fault.Seq(8) {
		ids = append(ids, id(1, 3*n+1))
	}
	s.Free(ids)
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != kept-8 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != kept-8 || got[0].ID != id(1, 2) {
		t.Errorf("%d reports, want %d: %s", len(got), kept-8, names(got))
	}
	if log.count("the spool is full") != 1 || log.count("keeps all reports again") != 1 {
		t.Errorf("said %d and %d times", log.count("the spool is full"), log.count("keeps all reports again"))
	}
}

// TestFullEndsWithTheLastWaitingReport: a spool is full as long as a report waits for room, not until the next report.
func TestFullEndsWithTheLastWaitingReport(t *testing.T) {
	cfg, log := config(t)
	s, _ := reopen(t, cfg)
	seq := fault.Seq(0)
	for s.Status().Err == "" {
		seq++
		s.Append(rec(1, seq, 2000))
		_ = syncOrFull(s)
	}
	s.Free([]fault.ReportID{id(1, seq)})
	sync1(t, s)
	within(t, "status without an error", func() bool { return s.Status().Err == "" })
	must(t, s.Close())
	if log.count("the spool is full") != 1 || log.count("keeps all reports again") != 1 {
		t.Errorf("said %d and %d times", log.count("the spool is full"), log.count("keeps all reports again"))
	}
}

// syncOrFull waits until all appended reports are on disk, or the spool says why not.
func syncOrFull(s *Spool) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Sync(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		default:
			if s.Status().Err != "" {
				cancel()
				return <-done
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	cfg, log := config(t)
	s, _ := reopen(t, cfg)
	s.Append(rec(1, 1, MaxPayload+1))
	s.Append(Record{ID: fault.ReportID{Origin: fault.Origin{Node: "else", Half: fault.HalfHost}, Epoch: 1, Seq: 1}})
	if st := s.Status(); st.Lost != 2 || st.Depth != 0 || log.count("refused by the spool") != 2 {
		t.Errorf("%+v", st)
	}
	if _, _, err := Open(cfg); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	must(t, s.Close())

	other := cfg
	other.Origin.Half = fault.HalfDNP
	if _, _, err := Open(other); err == nil || !strings.Contains(err.Error(), "n1-2-0/host: want one of n1-2-0/dnp") {
		t.Errorf("of another half: %v", err)
	}
	_, _, err := Open(Config{Size: 1, Origin: fault.Origin{Node: fault.NodeID(strings.Repeat("n", 256)), Half: fault.HalfHost}})
	for _, field := range []string{"Path", "Size", "Origin", "Now"} {
		if err == nil || !strings.Contains(err.Error(), field+": given") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	absent := cfg
	absent.Path = filepath.Join(filepath.Dir(cfg.Path), "absent", "host.spool")
	if _, _, err := Open(absent); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	link := cfg
	link.Path += ".link"
	must(t, os.Symlink(cfg.Path, link.Path))
	if _, _, err := Open(link); err == nil {
		t.Error("a link was followed")
	}
	dir := cfg
	dir.Path = t.TempDir()
	if _, _, err := Open(dir); err == nil {
		t.Error("a directory was opened")
	}
}

// change opens a spool with three reports after its file was changed.
func change(t *testing.T, how func(b []byte) []byte) (Config, *lines, *Spool, []Record, error) {
	t.Helper()
	cfg, log := config(t)
	s, _ := reopen(t, cfg)
	for seq := range fault.Seq(3) {
		s.Append(rec(1, seq+1, 100))
		sync1(t, s)
	}
	must(t, s.Close())
	b, err := os.ReadFile(cfg.Path)
	must(t, err)
	must(t, os.WriteFile(cfg.Path, how(b), 0o600))
	s, got, err := open(cfg, quick(), attach)
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return cfg, log, s, got, err
}

func TestDamagedFiles(t *testing.T) {
	reseal := func(b []byte) []byte {
		for at := 0; at < ringStart; at += headerStride {
			h := encodeHeader(header{origin: origin, size: MinSize})
			copy(h[24:40], b[24:40])
			h[8] = 2
			sealHeader(h)
			copy(b[at:], h)
		}
		return b
	}
	for _, tc := range []struct {
		name    string
		how     func(b []byte) []byte
		want    string
		damaged uint64
		said    string
		err     string
	}{
		{"as it was", func(b []byte) []byte { return b }, "1#1 1#2 1#3", 0, "", ""},
		{"cut in the ring", func(b []byte) []byte { return b[:ringStart+2*192+50] }, "1#1 1#2", 1, "was cut off", ""},
		{"cut in the header", func(b []byte) []byte { return b[:100] }, "", 0, "set aside as", ""},
		{"empty", func([]byte) []byte { return nil }, "", 0, "", ""},
		{"zeros", func(b []byte) []byte { clear(b); return b }, "", 0, "", ""},
		{"not a spool", func([]byte) []byte { return bytes.Repeat([]byte("x"), MinSize) }, "", 0, "set aside as", ""},
		{"first header garbled", func(b []byte) []byte { b[20] ^= 1; return b }, "1#1 1#2 1#3", 0, "copy of its header was garbled", ""},
		{"both headers garbled", func(b []byte) []byte { b[20] ^= 1; b[headerStride+20] ^= 1; return b }, "", 0, "set aside as", ""},
		{"a record garbled", func(b []byte) []byte { b[ringStart+192+80] ^= 1; return b }, "1#1 1#3", 1, "", ""},
		{"longer than it should be", func(b []byte) []byte { return append(b, b...) }, "1#1 1#2 1#3", 0, "", ""},
		{"another version", reseal, "", 0, "", "other version: given 2: want 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, log, s, got, err := change(t, tc.how)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %s", err, tc.err)
				}
				return
			}
			must(t, err)
			if names(got) != tc.want || s.Status().Damaged != tc.damaged || s.Status().Err != "" {
				t.Errorf("%s, %+v", names(got), s.Status())
			}
			if tc.said != "" && log.count(tc.said) == 0 || tc.said == "" && log.count("level=WARN") > 0 {
				t.Errorf("said: %s", log.String())
			}
			if _, err := os.Stat(cfg.Path + ".bad"); (err == nil) != (tc.said == "set aside as") {
				t.Errorf("set aside: %v", err)
			}
			s.Append(rec(2, 1, 10)) // and it goes on from there
			must(t, s.Close())
			if _, again := reopen(t, cfg); names(again) != strings.TrimSpace(tc.want+" 2#1") {
				t.Errorf("then %s", names(again))
			}
		})
	}
}

func TestFileCutAtManyBytes(t *testing.T) {
	cfg, _ := config(t)
	s, _ := reopen(t, cfg)
	for seq := range fault.Seq(30) {
		s.Append(rec(1, seq+1, int(seq)*20))
		sync1(t, s)
	}
	must(t, s.Close())
	whole, err := os.ReadFile(cfg.Path)
	must(t, err)
	h, err := decodeHeader(whole)
	must(t, err)
	for cut := ringStart; cut < ringStart+14000; cut += 97 {
		must(t, os.WriteFile(cfg.Path, whole[:cut], 0o600))
		want := names(scanRing(whole[ringStart:cut], h.id).records())
		s, got := reopen(t, cfg)
		if names(got) != want {
			t.Fatalf("cut at %d: %s, want %s", cut, names(got), want)
		}
		s.Append(rec(2, 1, 300))
		must(t, s.Close())
		if s, got = reopen(t, cfg); names(got) != strings.TrimSpace(want+" 2#1") {
			t.Fatalf("cut at %d, then appended: %s", cut, names(got))
		}
		must(t, s.Close())
	}
}

func TestSizeChanges(t *testing.T) {
	cfg, log := config(t)
	cfg.Size = 1 << 20
	s, _ := reopen(t, cfg)
	for seq := range fault.Seq(20) {
		s.Append(rec(1, seq+1, 1000))
	}
	must(t, s.Close())
	for i, size := range []int64{MinSize, 2 << 20, MinSize + 100, MinSize} {
		cfg.Size = size
		s, got := reopen(t, cfg)
		if len(got) != 20 || log.count("has now") != i+1 || s.Status().Err != "" {
			t.Fatalf("%d bytes: %d reports, %+v", size, len(got), s.Status())
		}
		if info, err := os.Stat(cfg.Path); err != nil || info.Size() != size {
			t.Fatalf("%v, %v", info, err)
		}
		if _, _, err := Open(cfg); !errors.Is(err, ErrInUse) {
			t.Errorf("opened twice: %v", err)
		}
		must(t, s.Close())
	}
	cfg.Size = 1 << 20
	s, _ = reopen(t, cfg)
	for seq := range fault.Seq(100) {
		s.Append(rec(2, seq+1, 1000))
	}
	must(t, s.Close())
	cfg.Size = MinSize
	s, got := reopen(t, cfg)
	if len(got) != 120 || log.count("120 reports do not fit") != 1 || s.Status().Err != "" {
		t.Errorf("%d reports, %+v", len(got), s.Status())
	}
	if info, err := os.Stat(cfg.Path); err != nil || info.Size() != 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := os.Stat(cfg.Path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the new file is left: %v", err)
	}
}

// TestMoreThanHalf: a free record is garbled and its reports come back; with them the ring holds more
// than reports may take. It keeps no new ones until enough are freed, one by one, in any order.
func TestMoreThanHalf(t *testing.T) {
	cfg, _ := config(t)
	s, _ := reopen(t, cfg)
	var back []fault.ReportID
	s.Append(rec(1, 1, 1500)) // holds the tail
	for seq := fault.Seq(2); seq < 28; seq++ {
		s.Append(rec(1, seq, 2000))
		back = append(back, id(1, seq))
	}
	sync1(t, s)
	s.Free(back)
	sync1(t, s)
	for seq := fault.Seq(30); seq < 42; seq++ {
		s.Append(rec(1, seq, 2000))
	}
	must(t, s.Close())
	b, err := os.ReadFile(cfg.Path)
	must(t, err)
	h, err := decodeHeader(b)
	must(t, err)
	for _, e := range scanRing(b[ringStart:], h.id).entries {
		if len(e.freed) == len(back) {
			b[ringStart+e.at+50] ^= 4
		}
	}
	must(t, os.WriteFile(cfg.Path, b, 0o600))

	s, got := reopen(t, cfg)
	if len(got) != 1+26+12 || s.Status().Damaged != 1 || s.Status().Bytes <= cfg.Size/2 {
		t.Fatalf("%s, %+v", names(got), s.Status())
	}
	s.Append(rec(2, 1, 2000))
	if err := syncOrFull(s); err == nil || !strings.Contains(err.Error(), "full: ") {
		t.Errorf("synced with %v", err)
	}
	for n := range len(got) - 1 {
		s.Free([]fault.ReportID{got[(n*17)%len(got)].ID}) // all but one
		within(t, "word of the free on disk", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.freed) == 0 && s.writing == 0
		})
	}
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != 2 || st.Damaged != 1 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != 2 || got[1].ID != id(2, 1) {
		t.Errorf("%s", names(got))
	}
}

// TestFullDamagedRingStillFrees: damage has left a ring with nothing but un-freed reports, up to the reserve for moving. Frees still
// get through, one by one and in any order, and then reports.
func TestFullDamagedRingStillFrees(t *testing.T) {
	cfg, _ := config(t)
	m := newImage(ringSize(cfg.Size))
	n := fault.Seq(0)
	for b := m.r.begin(); b.report(rec(1, n+1, 40), m.r.size/8); b = m.r.begin() {
		m.commit(b)
		n++
	}
	h := encodeHeader(header{origin: origin, size: cfg.Size, id: testID})
	file := slices.Concat(h, make([]byte, headerStride-len(h)), h, make([]byte, headerStride-len(h)), m.bytes)
	must(t, os.WriteFile(cfg.Path, file, 0o600))
	s, got := reopen(t, cfg)
	if n < 800 || len(got) != int(n) {
		t.Fatalf("%d reports, want %d", len(got), n)
	}
	s.Append(rec(2, 1, 40))
	if err := syncOrFull(s); err == nil || !strings.Contains(err.Error(), "full: ") {
		t.Errorf("synced with %v", err)
	}
	for i := range int(n) - 1 {
		s.Free([]fault.ReportID{got[i*331%int(n)].ID}) // all but one
		if i%3 == 0 {
			within(t, "free on disk", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.freed) == 0 && s.writing == 0
			})
		}
	}
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != 2 || st.Damaged != 0 || st.Lost != 0 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != 2 || got[1].ID != id(2, 1) {
		t.Errorf("%s", names(got))
	}
}
