package storage

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/spool"
)

var host0 = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}

func report(seq fault.Seq) fault.Report {
	return fault.Report{
		ID: fault.ReportID{Origin: host0, Epoch: 3, Seq: seq}, Uptime: 7 * time.Second, Registers: fault.Registers{HostWatchdog: 1},
		Observations: []fault.Observation{
			{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf, Age: time.Second, Detail: "errors"},
			{Node: "n1-0-0", Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindDescriptor},
		},
	}
}

// world is a disk, a boot and a clock.
type world struct {
	ReportLogConfig
	log   bytes.Buffer
	clock int64
}

func newWorld(t *testing.T) *world {
	w := &world{clock: int64(time.Hour)}
	w.ReportLogConfig = ReportLogConfig{
		Path: filepath.Join(t.TempDir(), "host.spool"), Size: spool.MinSize, Origin: host0, Boot: [16]byte{1},
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)), Now: func() int64 { return w.clock },
	}
	return w
}

func (w *world) open(t *testing.T) (*ReportLog, []servicenet.Kept) {
	t.Helper()
	k, kept := OpenReportLog(w.ReportLogConfig)
	t.Cleanup(func() { _ = k.Close() })
	return k, kept
}

func (w *world) close(t *testing.T, k *ReportLog) {
	t.Helper()
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}

// Reports that were kept and not forgotten come back unchanged, with their age.
func TestReportsComeBack(t *testing.T) {
	w := newWorld(t)
	k, kept := w.open(t)
	if len(kept) != 0 || k.Why() != "" {
		t.Fatalf("a new spool has %v, why %q", kept, k.Why())
	}
	k.Keep([]fault.Report{report(1), report(2)})
	w.clock += int64(time.Minute)
	k.Keep([]fault.Report{report(3)})
	k.Forget([]fault.ReportID{report(2).ID})
	k.Forget(nil)
	w.close(t, k)

	w.clock += int64(time.Second)
	k, kept = w.open(t)
	want := []servicenet.Kept{{Report: report(1), Age: time.Minute + time.Second}, {Report: report(3), Age: time.Second}}
	if !reflect.DeepEqual(kept, want) {
		t.Errorf("kept %+v\nwant %+v", kept, want)
	}
	if s := k.Status(); s.Depth != 2 || s.Recovered != 2 {
		t.Errorf("status %+v", s)
	}
	w.close(t, k)

	// After a boot the clock restarts: the age is at least the time since the boot.
	w.Boot, w.clock = [16]byte{2}, int64(20*time.Second)
	k, kept = w.open(t)
	if len(kept) != 2 || kept[0].Age != 20*time.Second || kept[1].Age != 20*time.Second {
		t.Errorf("after a boot: %+v", kept)
	}
	k.Forget([]fault.ReportID{report(1).ID, report(3).ID})
	w.close(t, k)
	if _, kept = w.open(t); len(kept) != 0 {
		t.Errorf("forgotten reports come back: %+v", kept)
	}
}

// A record that is no report, or another one, is left out and freed.
func TestUnreadableReportIsLeftOutAndFreed(t *testing.T) {
	w := newWorld(t)
	s, _, err := spool.Open(spool.Config{Path: w.Path, Size: w.Size, Origin: host0, Boot: w.Boot, Now: w.Now})
	if err != nil {
		t.Fatal(err)
	}
	s.Append(spool.Record{ID: report(1).ID, Payload: []byte("no report"), Boot: w.Boot})
	s.Append(spool.Record{ID: report(2).ID, Payload: nil, Boot: w.Boot}) // decodes, to a report without an id
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	k, kept := w.open(t)
	if len(kept) != 0 || strings.Count(w.log.String(), "cannot be read") != 2 {
		t.Errorf("kept %+v, log %s", kept, &w.log)
	}
	k.Keep([]fault.Report{report(4)})
	w.close(t, k)
	if _, kept = w.open(t); len(kept) != 1 || kept[0].Report.ID != report(4).ID {
		t.Errorf("kept %+v: want the good one alone", kept)
	}
}

// A half works without a spool, and can report why it has none.
func TestReportLogWorksWithoutSpool(t *testing.T) {
	none := newWorld(t)
	none.Size = 0
	held := newWorld(t)
	held.open(t)
	for _, tc := range []struct {
		name, why, path string
		w               *world
	}{
		{"none", "none is configured", "", none},
		{"in use", "open spool", held.Path, held},
	} {
		k, kept := tc.w.open(t)
		k.Keep([]fault.Report{report(1)})
		k.Forget([]fault.ReportID{report(1).ID})
		if len(kept) != 0 || !strings.Contains(k.Why(), tc.why) || k.Path() != tc.path || k.Status().Err != k.Why() {
			t.Errorf("%s: kept %v, why %q, path %q, status %+v", tc.name, kept, k.Why(), k.Path(), k.Status())
		}
		if err := k.Sync(t.Context()); err == nil {
			t.Errorf("%s: a sync succeeds", tc.name)
		}
		if err := k.Close(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// Synced reports are in the file even without Close.
func TestSyncedReportsAreInFile(t *testing.T) {
	w := newWorld(t)
	k, _ := w.open(t)
	k.Keep([]fault.Report{report(1)})
	if err := k.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied := newWorld(t)
	b, err := os.ReadFile(w.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied.Path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, kept := copied.open(t); len(kept) != 1 || kept[0].Report.ID != report(1).ID {
		t.Errorf("the file holds %v", kept)
	}
}

func TestBootIDIsStable(t *testing.T) {
	id, err := BootID()
	again, _ := BootID()
	if err != nil || id == ([16]byte{}) || id != again {
		t.Errorf("%x, %x, %v", id, again, err)
	}
	for _, bad := range []string{"", "0123", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef00"} {
		if _, err := parseBootID(bad); err == nil || !strings.Contains(err.Error(), "want a UUID") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
