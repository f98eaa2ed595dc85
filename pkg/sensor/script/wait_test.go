package script

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/pdeathsig"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

const ms = time.Millisecond

func TestStarvedCheckWaitedForHalfOfItsTime(t *testing.T) {
	for _, tt := range []struct {
		name     string
		runnable int // of 20 samples, 100 ms apart
		cpu      time.Duration
		waited   time.Duration
		excused  bool
	}{
		{"hangs", 0, 0, 0, false},
		{"loops by itself", 20, 2000 * ms, 0, false},
		{"loops on two processors", 20, 4000 * ms, 0, false},
		{"gets a third of a processor", 20, 660 * ms, 1340 * ms, true},
		{"gets two thirds of a processor", 20, 1340 * ms, 660 * ms, false},
		{"waits, then hangs", 8, 100 * ms, 700 * ms, false},
		{"waits for exactly half of the time", 10, 0, 1000 * ms, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w waits
			for i := range 20 {
				w.add(time.Duration(i+1)*100*ms, usage{runnable: i < tt.runnable, cpu: tt.cpu})
			}
			if w.waited() != tt.waited || (w.excuse(2*time.Second) != "") != tt.excused {
				t.Errorf("waited %v, excuse %q: want %v, %t", w.waited(), w.excuse(2*time.Second), tt.waited, tt.excused)
			}
		})
	}
}

// TestFewSamplesAreAnExcuse is about a machine so busy that the process that samples a check does not run either.
func TestFewSamplesAreAnExcuse(t *testing.T) {
	var w waits
	for i := range fewest {
		if w.excuse(2*time.Second) == "" {
			t.Errorf("no excuse after %d samples", i)
		}
		w.add(time.Duration(i+1)*100*ms, usage{})
	}
	if got := w.excuse(2 * time.Second); got != "" {
		t.Errorf("after %d samples of a check that sleeps: %s", fewest, got)
	}
	if got := (&waits{taken: 1, sampling: time.Second}).excuse(2 * time.Second); got != "" {
		t.Errorf("one sample, which took 1 s of processor time: %s", got)
	}
}

// process writes a process of one or more threads into a tree like /proc. The first thread has the number of the process.
func process(t *testing.T, root string, pid int, states string, ticks [4]int, children ...int) {
	t.Helper()
	for i, state := range states {
		stat := fmt.Sprintf("%d (a (b) c) %c 1 1 1 0 -1 0 0 0 0 0 %d %d %d %d 20 0 1 0 5%s\n", pid+i, state,
			ticks[0], ticks[1], ticks[2], ticks[3], strings.Repeat(" 0", 30))
		dir := filepath.Join(root, fmt.Sprint(pid), "task", fmt.Sprint(pid+i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		list := ""
		if i == len(states)-1 { // a thread other than the first may have started them
			list = strings.Trim(fmt.Sprint(children), "[]") + " "
		}
		for _, f := range []struct{ path, content string }{
			{filepath.Join(dir, "stat"), stat},
			{filepath.Join(dir, "children"), list},
			{filepath.Join(root, fmt.Sprint(pid), "stat"), stat},
		} {
			if err := os.WriteFile(f.path, []byte(f.content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestSampleCountsDescendants(t *testing.T) {
	root := t.TempDir()
	process(t, root, 10, "S", [4]int{1, 2, 30, 40}, 20, 30, 99) // 99 has just ended
	process(t, root, 20, "SS", [4]int{100, 0, 0, 0}, 40)
	process(t, root, 30, "Z", [4]int{5, 0, 0, 0})
	process(t, root, 40, "S", [4]int{0, 1000, 0, 0})
	process(t, root, 50, "R", [4]int{9, 9, 9, 9}) // not a descendant
	want := usage{cpu: (1 + 2 + 30 + 40 + 100 + 5 + 1000) * tick}
	if got, err := sample(root, 10); got != want || err != nil {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
	process(t, root, 40, "SR", [4]int{0, 1000, 0, 0})
	want.runnable = true
	if got, err := sample(root, 10); got != want || err != nil {
		t.Errorf("with a runnable thread: %+v, %v: want %+v", got, err, want)
	}
	if got, err := sample(root, 77); err == nil {
		t.Errorf("without the process: %+v, want an error", got)
	}
}

func TestSampleIsBounded(t *testing.T) {
	root := t.TempDir()
	for pid := 1; pid <= 2*maxProcesses; pid++ {
		process(t, root, pid, "S", [4]int{1, 0, 0, 0}, pid+1)
	}
	want := usage{cpu: maxProcesses * tick}
	if got, err := sample(root, 1); got != want || err != nil {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
}

// TestStarvedCheckIsUnknown runs a check in the idle class of a processor that this test keeps busy. The check does its
// work in processes that end soon, as shell scripts do.
func TestStarvedCheckIsUnknown(t *testing.T) {
	taskset := requirements.Program(t, "the Debian package util-linux", "taskset")
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	for range 3 { // processes of the class that the test has, which may be the idle class too
		busy := exec.CommandContext(t.Context(), taskset, "-c", strconv.Itoa(cpu), "sh", "-c", "while true; do :; done")
		if err := pdeathsig.Start(busy, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = busy.Wait() })
	}
	src := check(t, 4*time.Second, fmt.Sprintf(`echo working
taskset -pc %d $$ >&2 && chrt -i -p 0 $$ || exit 3
while true; do /bin/true; done`, cpu))
	r, err := src.Read(t.Context())
	if r.State != fault.Unknown || err != nil || !strings.Contains(r.Detail, "for a processor") {
		t.Errorf("%+v, %v: want UNKNOWN, with the time that it waited", r, err)
	}
	sourcetest.Check(t, src, r)
}
