package regfile

import (
	"errors"
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
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// victimEnv makes this test binary the process to kill: it opens the named register file as DNP half and stores words
// as fast as it can.
const victimEnv = "LOFAMO_TEST_REGFILE_VICTIM"

func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		if err := victim(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1) // it should have been killed
	}
	os.Exit(m.Run())
}

// victimWords differ in many bits, so that no mixture of two of them equals either.
var victimWords = func() []watchdog.DNPWord {
	words := make([]watchdog.DNPWord, 8)
	for i := range words {
		for d := range words[i].Links {
			words[i].Links[d] = watchdog.Health((i + d) % 3)
			words[i].NeighbourHostFailed[d] = (i+d)%2 == 0
		}
		words[i].Core, words[i].Power = watchdog.Health(i%3), watchdog.Health(i/3)
	}
	return words
}()

func victim(path string) error {
	f, err := Open(path, fault.HalfDNP)
	if err != nil {
		return err
	}
	// The test may die too, which closes its end of our standard input.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	for i := 0; ; i++ {
		// The test checks the epoch as soon as there is a word.
		if err := f.SetEpoch(fault.HalfDNP, fault.Epoch(1<<33+i)); err != nil {
			return err
		}
		if err := f.StoreDNP(victimWords[i%len(victimWords)]); err != nil {
			return err
		}
	}
}

// TestKilledAtRandomInstructions freezes and kills a process that writes without pause at random instructions,
// thousands of times. The reader must only find words that the process wrote, both while it runs and while it is frozen
// or dead. Frozen memory is the same as after a kill, and a stop is cheaper than a new process, so most moments are
// stops.
func TestKilledAtRandomInstructions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	host := mustOpen(t, path, fault.HalfHost)
	rng := rand.New(rand.NewPCG(1, 2))
	wrote := map[watchdog.DNPWord]bool{}
	for _, w := range victimWords {
		wrote[w] = true
	}
	// look reads the word as every reader does. A running owner may make it corrupt occasionally, when it stores faster
	// than the reader can look; a frozen or dead one may not.
	look := func(running bool) {
		w, s, err := host.TakeDNP()
		if running && errors.Is(err, ErrCorrupt) {
			return
		}
		blank := w == watchdog.DNPWord{} && !s.Valid
		w.Valid = false
		if err != nil || s.Corrupt || !wrote[w] && !blank {
			t.Fatalf("running %t: %+v %+v %v", running, w, s, err)
		}
		if e := host.Epoch(fault.HalfDNP); !running && !blank && e < 1<<33 {
			t.Fatalf("epoch %d", e)
		}
	}
	stops, kills := 0, 0
	deadline := time.Now().Add(2500 * time.Millisecond)
	if testing.Short() {
		deadline = time.Now().Add(300 * time.Millisecond)
	}
	for time.Now().Before(deadline) {
		p := startVictim(t, path, host)
		for range 40 {
			for range rng.IntN(20) {
				look(true)
			}
			p.stop(t)
			stops++
			look(false)
			look(false)
			p.signal(t, unix.SIGCONT)
		}
		p.kill(t)
		kills++
		look(false)
		look(false)
	}
	t.Logf("%d stops, %d kills, %d corrupt reads of a running owner", stops, kills, host.Corrupt())
	if stops < 40 || kills < 1 {
		t.Errorf("%d stops and %d kills only", stops, kills)
	}
}

type process struct {
	pid   int
	stdin io.Closer
}

// startVictim returns when the new process has written its first word.
func startVictim(t *testing.T, path string, host *File) process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	p := process{cmd.Process.Pid, stdin}
	for limit := time.Now().Add(time.Minute); ; {
		if _, s, _ := host.TakeDNP(); s.Valid {
			return p
		}
		if time.Now().After(limit) {
			p.kill(t)
			t.Fatal("the victim wrote nothing for a minute")
		}
		runtime.Gosched()
	}
}

func (p process) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	must(t, unix.Kill(p.pid, s))
}

// stop freezes the process, and returns once it is frozen.
func (p process) stop(t *testing.T) {
	t.Helper()
	p.signal(t, unix.SIGSTOP)
	if ws := p.wait(t, unix.WUNTRACED); !ws.Stopped() {
		t.Fatalf("victim did not stop but ended: status 0x%x", ws)
	}
}

func (p process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, unix.SIGKILL)
	if ws := p.wait(t, 0); ws.Signal() != unix.SIGKILL {
		t.Fatalf("victim was not killed but ended: status 0x%x", ws)
	}
	must(t, p.stdin.Close())
}

func (p process) wait(t *testing.T, options int) unix.WaitStatus {
	t.Helper()
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(p.pid, &ws, options, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		must(t, err)
		return ws
	}
}
