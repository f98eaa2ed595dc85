package inject

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/campaign/account"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/fault"
)

// unloaded reports whether a component keeps its state under the load.
func (f *field) unloaded(component string) bool {
	return component != "node" && !slices.Contains(f.demand.changes, component)
}

// watchFor is the observation time of a flip in live data before the half is restarted.
const watchFor = 1200 * time.Millisecond

// tryFlip makes a flip in a half, observes it, and restarts the half, as the paper reloads the network processor after
// each run. noted means that the half only notes a change in its memory: the sample then counts as effective only if
// the flip had an effect.
func (f *field) tryFlip(n cluster.NodeInfo, w who, flip func(pid int) (string, error), noted bool) (sample, error) {
	s := sample{applied: true, touched: true, category: catNoImpact}
	before, err := f.beforeFlip(n, w)
	if err == nil {
		err = f.neighboursWell(n)
	}
	if err != nil {
		return s, err
	}
	log := f.Cluster.SupervisorLog(f.Cluster.Info().Supervisors[0].ID)
	read, err := size(log)
	if err != nil {
		return s, err
	}
	own := f.Cluster.Log(n, w.half().String())
	from, err := size(own)
	if err != nil {
		return s, err
	}
	mark, at, clock := f.Mark(), cluster.Monotonic(), time.Now()
	if s.what, err = flip(before.PID); err != nil {
		return s, err
	}
	kept := map[string]int64{}
	for _, h := range []string{"host", "dnp"} {
		path := f.Cluster.Log(n, h)
		if kept[path], err = size(path); err != nil {
			return s, err
		}
	}
	f.observeFlip(n, w, before, at, &s)
	reports, err := reportsSince(log, read, kept)
	if err != nil {
		return s, err
	}
	f.judgeFlip(n, mark, at, reports, &s)
	if noted {
		s.quiet = s.ours == "" && !s.prober && !s.harmed
		if found, err := notedAt(own, from); err != nil {
			return s, err
		} else if !found.IsZero() {
			s.ours, s.detect = byGuard, found.Sub(clock)
		}
	}
	if s.prober && s.ours == "" { // the application knows, and we do not yet
		ctx, cancel := context.WithTimeout(f.t.Context(), watchOn)
		if e, err := f.Wait(ctx, mark, func(e lab.Seen) bool { return f.detects(e, n) }); err == nil {
			s.foundBy(e, n, at)
		}
		cancel()
	}
	if noted {
		if err := dropCopy(n, w.half(), before.PID); err != nil {
			return s, err
		}
	}
	return s, f.restartAfterFlip(n, w, before, &s)
}

// dropCopy stops a half, and removes its copy. A half that only notes a change of its memory copies the changed state, so only a cold start
// heals it.
func dropCopy(n cluster.NodeInfo, h fault.Half, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); errors.Is(err, syscall.ESRCH) {
		return nil // the flip has ended it
	} else if err != nil {
		return err
	}
	if err := os.Remove(half.CopyPath(n.StateDir, h)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// size returns the length of a file.
func size(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// notedAt returns when a half first noted a change in its memory, in its log from an offset on; zero: it did not.
func notedAt(path string, from int64) (at time.Time, err error) {
	err = eachLine(path, from, func(l logLine) {
		if at.IsZero() && strings.HasPrefix(l.Msg, half.MsgMemory) {
			at = l.Time
		}
	})
	return at, err
}

// logLine has the fields of a log line that flips need.
type logLine struct {
	Time    time.Time
	Msg     string
	Report  string
	Reports []string
}

// eachLine reads the JSON lines of a log from an offset on. It skips other lines, which a panic writes.
func eachLine(path string, from int64, do func(logLine)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l logLine
		if json.Unmarshal(lines.Bytes(), &l) == nil {
			do(l)
		}
	}
	return lines.Err()
}

// reportsSince counts the reports that a supervisor has taken, in its log from an offset on, and that the halves of a
// node have made after a flip: their logs name them as kept only behind these offsets. A report that was on its way at
// the flip does not count, because behind it there may be silence.
func reportsSince(log string, from int64, kept map[string]int64) (count int, err error) {
	after := map[string]bool{}
	for path, offset := range kept {
		if err := eachLine(path, offset, func(l logLine) {
			if l.Msg == account.Kept {
				for _, id := range l.Reports {
					after[id] = true
				}
			}
		}); err != nil {
			return 0, err
		}
	}
	err = eachLine(log, from, func(l logLine) {
		if l.Msg == engine.TraceTaken && after[l.Report] {
			count++
		}
	})
	return count, err
}

func TestReportOnItsWayAtFlipDoesNotCount(t *testing.T) {
	dir := t.TempDir()
	half, supervisor := filepath.Join(dir, "dnp.log"), filepath.Join(dir, "supervisor.log")
	write := func(path, lines string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(lines); err != nil {
			t.Fatal(err)
		}
	}
	write(half, `{"msg":"reports kept","reports":["n/dnp@1#5"]}`+"\n")
	write(supervisor, `{"msg":"report taken","report":"n/dnp@1#4"}`+"\n")
	from, err := size(supervisor)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]int64{}
	if kept[half], err = size(half); err != nil { // the flip
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, half, supervisor string
		want                   int
	}{
		{"one that was on its way, and a digest", "", `{"msg":"report taken","report":"n/dnp@1#5"}` + "\n" +
			`{"msg":"report taken","report":"n/dnp@1#6"}` + "\n", 0},
		{"one that did not arrive", `{"msg":"reports kept","reports":["n/dnp@1#7"]}` + "\npanic: no JSON\n", "", 0},
		{"one that did", "", `{"msg":"report taken","report":"n/dnp@1#7"}` + "\n", 1},
	} {
		write(half, tc.half)
		write(supervisor, tc.supervisor)
		if got, err := reportsSince(supervisor, from, kept); err != nil || got != tc.want {
			t.Errorf("%s: %d reports, want %d: %v", tc.name, got, tc.want, err)
		}
	}
}

// beforeFlip waits until no trace of an earlier sample is left, and returns the half's record.
func (f *field) beforeFlip(n cluster.NodeInfo, w who) (halfcore.RecoveryRecord, error) {
	before, err := f.await(n, w.half(), func(x halfcore.RecoveryRecord) bool { // no recovery is in progress
		return x.State == halfcore.Running && x.PID != 0 && (x.Last == nil || x.Last.Proven > 0 || x.Last.Serving == 0)
	})
	if err != nil {
		return before, err
	}
	return before, f.wellAgain(n, f.unloaded)
}

// observeFlip watches a half after a flip, and records whether its daemon restarted it.
func (f *field) observeFlip(n cluster.NodeInfo, w who, before halfcore.RecoveryRecord, at int64, s *sample) {
	time.Sleep(f.watch)
	if r, err := f.running(n, w.half()); err != nil {
		s.what += ": " + err.Error()
	} else if r.Total > before.Total && r.Last != nil {
		s.found(*r.Last, at)
		if s.category = catCrash; s.ours == byWatchdog {
			s.category = catHang
		}
	}
}

// restartAfterFlip kills a half that still is the process of before, and records whether it and its node recover.
func (f *field) restartAfterFlip(n cluster.NodeInfo, w who, before halfcore.RecoveryRecord, s *sample) error {
	h := w.half()
	r, err := f.running(n, h)
	if err != nil {
		return nil //nolint:nilerr // it is not healed, which the sample says
	}
	if r.PID == before.PID {
		if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
			return err
		}
	}
	_, err = f.await(n, h, func(x halfcore.RecoveryRecord) bool {
		return x.State == halfcore.Running && x.PID != before.PID && x.PID != 0 && x.Last != nil && x.Last.Proven > 0
	})
	if err == nil {
		err = f.wellAgain(n, f.unloaded)
	}
	if err != nil {
		s.what += ": " + err.Error()
		return nil //nolint:nilerr // see above
	}
	s.healed = true
	return nil
}

// ownFault reports whether a half reports a fault of its own: its host or its DNP core is SICK, or its DNP core broken.
// Only others call a host
// FAILED.
func ownFault(e lab.Seen) bool {
	return e.GetTo() == lofamov1.State_SICK && (e.GetComponent() == "host" || e.GetComponent() == "dnp-core") ||
		e.GetTo() == lofamov1.State_FAILED && e.GetComponent() == "dnp-core"
}

// wellAgain waits until the map shows the counted components of a node as NORMAL.
func (f *field) wellAgain(n cluster.NodeInfo, counts func(component string) bool) error {
	deadline := time.Now().Add(patience)
	for {
		node, err := f.Client.GetNode(f.t.Context(), string(n.ID))
		bad := ""
		if err == nil {
			for _, c := range node.GetComponents() {
				if counts(c.GetName()) && c.GetState() != lofamov1.State_NORMAL && !strings.HasPrefix(c.GetName(), "peripheral/") {
					bad = c.GetName() + " is " + c.GetState().String()
				}
			}
			if bad == "" {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not well again: %s %w", n.ID, bad, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
