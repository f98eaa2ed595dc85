package storage

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// victimEnv makes this test binary the process that is killed: it opens the copy named there and stores as fast as it can.
const victimEnv = "LOFAMO_TEST_BACKUP_VICTIM"

func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		if err := victim(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1) // it should have been killed
	}
	os.Exit(m.Run())
}

// counters whose every part follows from one number: any mixture of two of them shows.
func counters(n uint64) torus.LinkSnapshot {
	return torus.LinkSnapshot{TxSession: 1, TxSeq: n, Acked: n * 3, High: n * 5, Replay: n * 7, PeerEpoch: fault.Epoch(n * 11),
		Rx: torus.LinkNormal, Tx: torus.LinkNormal}
}

func pattern(n uint64, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n*31 + uint64(i)*n)
	}
	return b
}

// victim resumes from its copy, and stores in the order that halves keep: number, report, link, relay slot.
func victim(path string) error {
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	if err != nil {
		return err
	}
	go func() { // the test may die too: its end of our standard input closes then
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	was, _ := f.Numbers()
	for _, r := range f.Reports() { // left over by a killed incarnation
		if r.Seq+3 <= was.Seq {
			if err := f.FreeReports([]fault.ReportID{{Epoch: r.Epoch, Seq: r.Seq}}); err != nil {
				return err
			}
		}
	}
	for n := uint64(was.Seq) + 1; ; n++ {
		c := counters(n)
		for _, store := range []func() error{
			func() error { return f.StoreNumbers(numbers(7, fault.Seq(n))) },
			func() error {
				return f.PutReport(CopiedReport{Epoch: 7, Seq: fault.Seq(n), At: int64(n), Payload: pattern(n, 1+int(n%200))})
			},
			func() error { return f.FreeReports([]fault.ReportID{{Epoch: 7, Seq: fault.Seq(n - 3)}}) },
			func() error { return f.StoreCounters(grid.XPlus, &c) },
			func() error { return f.StoreRelay(int(n%NumRelay), pattern(n, 8+int(n%1000))) },
		} {
			if err := store(); err != nil {
				return err
			}
		}
	}
}

// checkCell reports defects in the copy of a stopped victim, and returns its progress.
func checkCell(t *testing.T, path string, before uint64) uint64 {
	t.Helper()
	f, err := ReadCopy(path, identity(fault.HalfDNP))
	must(t, err)
	at, ok := f.Numbers()
	n := uint64(at.Seq)
	if !ok || n < before || f.stats.Lost != 0 {
		t.Fatalf("numbers %+v, %t, before %d; %d lost", at, ok, before, f.stats.Lost)
	}
	c, _, _ := f.Link(grid.XPlus)
	if want := counters(c.TxSeq); c != want || c.TxSeq > n || c.TxSeq+1 < n {
		t.Fatalf("at %d: link %+v, want %+v", n, c, want)
	}
	reports := f.Reports()
	for _, r := range reports {
		if m := uint64(r.Seq); m > n || m+4 < n || r.At != int64(m) || string(r.Payload) != string(pattern(m, 1+int(m%200))) {
			t.Fatalf("at %d: report %+v", n, r)
		}
	}
	if len(reports) < 2 || len(reports) > 4 {
		t.Fatalf("at %d: %d reports", n, len(reports))
	}
	for i := range NumRelay {
		b := f.Relay(i)
		m := n - (n-uint64(i))%NumRelay // the newest that may be there
		if was := m - NumRelay; string(b) != string(pattern(m, 8+int(m%1000))) && string(b) != string(pattern(was, 8+int(was%1000))) {
			t.Fatalf("at %d: slot %d: %x", n, i, b)
		}
	}
	return n
}

// A process that stores without pause is frozen and killed at random instructions. All that it stored is there, in
// the order in which it stored it, and nothing else, and its next incarnation resumes there. Frozen memory equals the
// memory that a kill leaves.
func TestKilledAtRandomInstructions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	rng := rand.New(rand.NewPCG(1, 2))
	deadline := time.Now().Add(2 * time.Second)
	if testing.Short() {
		deadline = time.Now().Add(300 * time.Millisecond)
	}
	stops, kills, at := 0, 0, uint64(0)
	for time.Now().Before(deadline) {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env, cmd.Stderr = append(os.Environ(), victimEnv+"="+path), os.Stderr
		stdin, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		for limit := time.Now().Add(time.Minute); ; runtime.Gosched() { // until the slots are full
			if f, err := ReadCopy(path, identity(fault.HalfDNP)); err == nil {
				if now, _ := f.Numbers(); uint64(now.Seq) > at+2*NumRelay {
					break
				}
			}
			if time.Now().After(limit) {
				t.Fatal("the victim stores nothing")
			}
		}
		for range 10 {
			for range rng.IntN(3000) {
				runtime.Gosched()
			}
			must(t, cmd.Process.Signal(unix.SIGSTOP))
			var ws unix.WaitStatus
			_, err := unix.Wait4(cmd.Process.Pid, &ws, unix.WUNTRACED, nil)
			must(t, err)
			at = checkCell(t, path, at)
			stops++
			must(t, cmd.Process.Signal(unix.SIGCONT))
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		_ = stdin.Close() // Wait has
		at = checkCell(t, path, at)
		kills++
	}
	t.Logf("%d stops, %d kills, %d rounds of stores", stops, kills, at)
	if stops < 10 || kills < 1 {
		t.Errorf("%d stops and %d kills only", stops, kills)
	}
}
