package deaths

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/testing/trial"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	// powerBack is the time after which a machine that is off gets its power back.
	powerBack = 5 * time.Second
	// powerCut is the line that cuts a machine's power. The start scripts run all other lines.
	powerCut = "power-cut"
)

// Play starts a ring for a person, prints how to reach it, and lets it run until ctx ends. A machine that is off gets its power back.
func Play(ctx context.Context, o Options) (err error) {
	o.local = true
	c := &campaign{o: o, truth: trial.NewTruth(grid.Dims{X: o.Nodes, Y: 1, Z: 1}, false)}
	if c.ring, err = newRing(ctx, o); err != nil {
		return err
	}
	defer c.ring.close()
	_, _ = fmt.Fprintf(o.Out, "%d machines boot; their consoles: %s\n", len(c.ring.machines()), filepath.Join(o.Dir, "*.console"))
	if err := c.begin(ctx); err != nil {
		return err
	}
	machines := c.ring.machines()
	errs := make([]error, len(machines))
	var all sync.WaitGroup
	for i, m := range machines {
		keys, err := m.keyboard()
		if err != nil {
			errs[i] = err
			continue
		}
		all.Go(func() { errs[i] = m.attend(ctx, keys) })
	}
	_, _ = fmt.Fprint(o.Out, c.ring.instructions(o))
	all.Wait()
	return errors.Join(errs...)
}

// instructions says how to reach the ring.
func (r *ring) instructions(o Options) string {
	who := r.operator(o, "operator")
	at := func(file string) string { return filepath.Join(o.Dir, file) }
	server := fmt.Sprintf("localhost:%d", r.server.Port())
	text := fmt.Sprintf(`
ask the supervisor:
  export LOFAMO_SERVER=%s LOFAMO_CA=%s LOFAMO_CERT=%s LOFAMO_KEY=%s
  %s get nodes
  %[5]s watch
see a console, and the log of the program there (s1: the supervisor):
  tail -F %[6]s
  tail -F %[7]s
run a command there:
  echo 'ps; ip address' >%[8]s
let a kernel panic, cut the power of a machine, kill an agent and start it again:
  echo 'echo c >/proc/sysrq-trigger' >%[8]s
  echo %[9]s >%[8]s
  echo 'killall -9 lofamo-agent' >%[8]s
  echo start >%[8]s
`, server, who.CA, who.Cert, who.Key, filepath.Join(o.Bin, "lofamoctl"), at("n0.console"), at("n0.log"), at("n0.keys"), powerCut)
	if r.cards != nil {
		text += fmt.Sprintf("the card of n0 is the machine c0; cut the window between the two, and join it:\n"+
			"  echo 'ip link set eth1 down' >%s\n  echo 'ip link set eth1 up' >%[1]s\n", at("c0.keys"))
	}
	return text + fmt.Sprintf("a machine that is off gets its power back after %s; Ctrl-C ends the ring\n", powerBack)
}

// keyboard makes the file .keys of a machine, whose lines go to its start script.
func (m *guest) keyboard() (*os.File, error) {
	if err := syscall.Mkfifo(m.path(".keys"), 0o600); err != nil {
		return nil, fmt.Errorf("keyboard of machine %s: %w", m.name, err)
	}
	return os.OpenFile(m.path(".keys"), os.O_RDWR, 0) // with a writer of its own, so that it has no end
}

// attend passes lines on from keys, which it closes, and powers the machine on whenever it is off, until ctx ends.
func (m *guest) attend(ctx context.Context, keys *os.File) error {
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(keys); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { _ = keys.Close() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-lines:
			if line == powerCut {
				_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
			} else {
				_ = m.typeIn(line) // a machine that is off takes no lines
			}
		case <-m.ended:
			m.off()
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(powerBack):
			}
			if err := m.start(ctx); err != nil {
				return err
			}
		}
	}
}
