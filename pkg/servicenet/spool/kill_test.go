package spool

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

const victimEnv = "LOFAMO_SPOOL_VICTIM"

// freeLate is the additional delay of the free of one report in three.
const freeLate = 62

// victim appends without end, each life in an epoch of its own, frees two of three soon and one late,
// and prints what Sync has confirmed: "kept SEQ", "freed SEQ".
func victim(path string) int {
	var epoch fault.Epoch
	if _, err := fmt.Sscan(os.Getenv(victimEnv+"_EPOCH"), &epoch); err != nil {
		return 2
	}
	s, old, err := Open(Config{Path: path, Size: MinSize, Origin: origin, Now: func() int64 { return 1 }})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	for _, r := range old { // the parent has seen these and needs them no more
		s.Free([]fault.ReportID{r.ID})
	}
	for seq := fault.Seq(1); ; seq++ {
		s.Append(Record{ID: id(epoch, seq), Payload: payload(epoch, seq, int(seq%700)+20)})
		var out strings.Builder
		if seq%5 == 0 || seq%7 == 0 { // several in one batch
			if err := s.Sync(context.Background()); err != nil {
				return 1
			}
			fmt.Fprintln(&out, "kept", seq)
		}
		if done := seq - 30; seq > 30 && seq%3 == 0 {
			s.Free([]fault.ReportID{id(epoch, done), id(epoch, done-1), id(epoch, max(done, freeLate)-freeLate)})
			if err := s.Sync(context.Background()); err != nil {
				return 1
			}
			fmt.Fprintln(&out, "kept", seq)
			fmt.Fprintln(&out, "freed", done)
		}
		fmt.Print(out.String())
	}
}

// TestKilledProcessKeepsSyncedReports ends processes with signal 9 at any moment: all reports that Sync had confirmed
// are present, in order, each once; those it had confirmed to be freed are not.
func TestKilledProcessKeepsSyncedReports(t *testing.T) {
	cfg, _ := config(t)
	cfg.Boot = [16]byte{}
	for life := fault.Epoch(1); life <= 8; life++ {
		kept, freed := killAfter(t, cfg.Path, life, 40+int(life)*97)
		s, got, err := Open(cfg)
		must(t, err)
		seen := map[fault.Seq]bool{}
		last := fault.ReportID{}
		for _, r := range got {
			if !r.ID.Newer(last) {
				t.Fatalf("life %d: %s after %s", life, r.ID, last)
			}
			last = r.ID
			if r.ID.Epoch == life {
				seen[r.ID.Seq] = true
			}
			if string(r.Payload) != string(payload(r.ID.Epoch, r.ID.Seq, int(r.ID.Seq%700)+20)) {
				t.Fatalf("life %d: %s holds %.40q", life, r.ID, r.Payload)
			}
		}
		for seq := fault.Seq(1); seq <= kept; seq++ {
			by := seq // the victim's number of the free that includes this one
			switch seq % 3 {
			case 1:
				by += freeLate
			case 2:
				by++
			}
			switch {
			case by <= freed && seen[seq]:
				t.Errorf("life %d: #%d was freed (up to #%d) and is back", life, seq, freed)
			case by > freed+3 && !seen[seq]:
				t.Errorf("life %d: #%d was on disk (up to #%d) and not freed (up to #%d), and is lost", life, seq, kept, freed)
			}
		}
		if d := s.Status().Damaged; d > 1 {
			t.Errorf("life %d: %d damaged", life, d)
		}
		must(t, s.Close())
	}
}

// killAfter runs a victim until it has printed n lines, and returns the records that it confirmed by its death.
func killAfter(t *testing.T, path string, epoch fault.Epoch, n int) (kept, freed fault.Seq) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+path, fmt.Sprintf("%s_EPOCH=%d", victimEnv, epoch))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for ; lines.Scan(); n-- {
		var seq fault.Seq
		what, number, _ := strings.Cut(lines.Text(), " ")
		if _, err := fmt.Sscan(number, &seq); err != nil {
			t.Errorf("the victim says %q", lines.Text())
		}
		switch what {
		case "kept":
			kept = max(kept, seq)
		case "freed":
			freed = max(freed, seq)
		}
		if n == 0 {
			must(t, cmd.Process.Kill())
		}
	}
	if err := cmd.Wait(); err == nil || n >= 0 {
		t.Fatalf("the victim ended by itself: %v", err)
	}
	return kept, freed
}
