//go:build lofamo_failpoint

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// These tests run acts with real processes: a leader's, with this package's executor, and a node's recovery daemon,
// with the real ledger on disk. Each is killed and paused at each of its steps, in the first attempt, in a recheck and
// in an undo. A socket replaces the network and the halves between them.

// rounds is the number of repetitions; 10 kill and pause more than 1,000 times.
var rounds = flag.Int("acts.rounds", 1, "rounds of kills and pauses at each step of an act")

const (
	roleEnv  = "LOFAMO_TEST_ROLE" // JSON of a role: a separate process
	patience = time.Minute
	halfLog  = "half.log" // a line for each start of the half
	fence    = "fence"    // the highest elected token, as in the store
	pause    = 100        // ms

	leaderSocket = "leader.sock"   // tells which points are armed in a leader's process
	leaderPoints = "leader.points" // the same, written when the process ends
)

// role is the task of a separate process.
type role struct {
	Dir    string
	Daemon bool
	Job    executor.Job // for a leader
	Points []failpoint.Order
}

func TestMain(m *testing.M) {
	text := os.Getenv(roleEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	for _, p := range r.Points {
		err = errors.Join(err, failpoint.Arm(p))
	}
	if err == nil && r.Daemon {
		err = r.daemon()
	} else if err == nil {
		err = r.lead()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// daemon serves acts until it is killed.
func (r role) daemon() error {
	d := daemon.NewActionRunner(context.Background(), daemon.ActionRunnerConfig{
		Node: "n0", StateDir: r.Dir, Sysfs: filepath.Join(r.Dir, "sysfs"), Log: slog.New(slog.DiscardHandler),
		Allowed: config.ResponsesConfig{RestartHalf: true, LimitFrequency: true}, Restart: r.restart,
	})
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := d.Begin(h); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	failpoint.Mount(mux)
	mux.Handle("/", d.Handler(fault.HalfHost))
	path := filepath.Join(r.Dir, actions.Socket(fault.HalfHost))
	_ = os.Remove(path) // from the killed daemon
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	return (&http.Server{Handler: mux, ReadHeaderTimeout: patience}).Serve(l)
}

// restart simulates the restart of a half: it notes the number of earlier starts and adds one.
func (r role) restart(_ context.Context, _ fault.Half, earlier string, note func(string) error) actions.Result {
	starts := func() int { b, _ := os.ReadFile(filepath.Join(r.Dir, halfLog)); return strings.Count(string(b), "\n") }
	if was, err := strconv.Atoi(earlier); err == nil && was != starts() {
		return actions.Result{State: actions.Done, Detail: "it was"}
	}
	if err := note(strconv.Itoa(starts())); err != nil {
		return actions.Result{State: actions.Unchanged, Detail: err.Error()}
	}
	failpoint.Hit(failpoint.ActNoted)
	f, err := os.OpenFile(filepath.Join(r.Dir, halfLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString("start\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return actions.Result{State: actions.NotKnown, Detail: err.Error()}
	}
	return actions.Result{State: actions.Done, Detail: "it is"}
}

// carrier carries a leader's orders to the daemon, as a half does, and returns the answers.
type carrier struct {
	dir   string
	actor *Actor
}

func (s *carrier) Order(_ fault.NodeID, o *lofamov1.ActOrder, _ int) {
	order := actions.FromWire(o)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		st, err := half.TellAction(ctx, s.dir, &order)
		if err != nil {
			return // the daemon is down: no answer
		}
		s.actor.Heard(&lofamov1.ActStatus{
			Node: o.GetNode(), Response: o.GetResponse(), Step: o.GetStep(), Attempt: o.GetAttempt(), State: st.State, Detail: st.Detail,
			Ledger: st.Ledger, Token: st.Token, Allowed: st.Allowed, Fresh: st.Fresh,
		})
	}()
}

// lead makes one attempt and prints its result.
func (r role) lead() error {
	mux := http.NewServeMux()
	failpoint.Mount(mux)
	_ = os.Remove(filepath.Join(r.Dir, leaderSocket)) // from the process before
	l, err := net.Listen("unix", filepath.Join(r.Dir, leaderSocket))
	if err != nil {
		return err
	}
	go func() { _ = (&http.Server{Handler: mux, ReadHeaderTimeout: patience}).Serve(l) }()
	res, err := r.attempt()
	if err != nil {
		return err
	}
	// A test that did not ask in time reads the file instead.
	points := httptest.NewRecorder()
	mux.ServeHTTP(points, httptest.NewRequest(http.MethodGet, "/failpoint", nil))
	if err := os.WriteFile(filepath.Join(r.Dir, leaderPoints), points.Body.Bytes(), 0o600); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}

func (r role) attempt() (executor.Result, error) {
	s := &carrier{dir: r.Dir}
	s.actor = NewActor(s)
	e, err := New(config.NodeExecutor{AskFor: config.Duration(20 * time.Second)}, s.actor, nil)
	if err != nil {
		return executor.Result{}, err
	}
	return e.Do(executor.WithFence(context.Background(), func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(r.Dir, fence))
		if highest, err2 := strconv.ParseUint(string(b), 10, 64); err == nil && (err2 != nil || highest > r.Job.Token) {
			err = fmt.Errorf("%w: token %s", executor.ErrStale, b)
		}
		return err
	}), r.Job), nil
}

// node is one node with its daemon and its leaders.
type node struct {
	t        *testing.T
	dir      string
	job      executor.Job
	daemon   *exec.Cmd
	gone     chan error
	disturbs int // number of points hit
}

func newNode(t *testing.T, kind response.Kind, parameters map[string]string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	if err := os.CopyFS(filepath.Join(n.dir, "sysfs"), os.DirFS("../../agent/daemon/testdata/sysfs")); err != nil {
		t.Fatal(err)
	}
	n.job = job(kind, fault.ComponentMemory)
	n.job.Attempt.Attempt, n.job.Token, n.job.Recheck, n.job.Parameters, n.job.Timeout = 0, 4, false, parameters, 20*time.Second
	t.Cleanup(func() { n.end() })
	return n
}

func (n *node) process(r role) *exec.Cmd {
	n.t.Helper()
	r.Dir = n.dir
	b, err := json.Marshal(r)
	if err != nil {
		n.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), roleEnv+"="+string(b))
	c.Stderr = n.t.Output()
	return c
}

// begin starts a daemon and waits until it serves.
func (n *node) begin(points ...failpoint.Order) {
	n.t.Helper()
	_ = os.Remove(filepath.Join(n.dir, actions.Socket(fault.HalfHost)))
	n.daemon, n.gone = n.process(role{Daemon: true, Points: points}), make(chan error, 1)
	if err := n.daemon.Start(); err != nil {
		n.t.Fatal(err)
	}
	c, gone := n.daemon, n.gone
	go func() { gone <- c.Wait() }()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if c, err := net.Dial("unix", filepath.Join(n.dir, actions.Socket(fault.HalfHost))); err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			n.t.Fatal("the daemon does not serve")
		}
	}
}

// passed reports whether a process has reached its point, where it is paused.
func (n *node) passed(socket string) bool {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(n.dir, socket))
	}}
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://process/failpoint")
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return noneArmed(resp.Body)
}

// noneArmed reads the number of armed points, and reports whether it is 0.
func noneArmed(r io.Reader) bool {
	var got struct{ Armed *int }
	err := json.NewDecoder(r).Decode(&got)
	return err == nil && got.Armed != nil && *got.Armed == 0
}

// hadPassed is like passed, but also works after the leader's process has ended.
func (n *node) hadPassed(p where) bool {
	if p.daemon {
		return n.passed(actions.Socket(fault.HalfHost))
	}
	b, err := os.ReadFile(filepath.Join(n.dir, leaderPoints))
	return err == nil && noneArmed(bytes.NewReader(b))
}

// end kills the daemon if it is alive.
func (n *node) end() {
	if n.daemon != nil {
		_ = n.daemon.Process.Kill()
		<-n.gone
		n.daemon = nil
	}
}

// next returns the next leader's attempt.
func (n *node) next() executor.Job {
	n.job.Attempt.Attempt++
	n.job.Token++
	if err := os.WriteFile(filepath.Join(n.dir, "next"), []byte(strconv.FormatUint(n.job.Token, 10)), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(n.dir, "next"), filepath.Join(n.dir, fence)); err != nil { // elects the leader
		n.t.Fatal(err)
	}
	j := n.job
	n.job.Recheck = true
	return j
}

// succeeds lets leaders make attempts until one succeeds.
func (n *node) succeeds() executor.Job {
	n.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // no attempt starts while another is in progress
		j := n.next()
		res, err := role{Dir: n.dir, Job: j}.attempt()
		switch {
		case err != nil:
			n.t.Fatal(err)
		case res.Outcome == response.Succeeded:
			return j
		case time.Now().After(end):
			n.t.Fatalf("it never succeeds: %+v", res)
		}
	}
}

// where is a step at which a process is disturbed.
type where struct {
	failpoint.Point
	skip   int
	daemon bool
}

func (p where) order(action failpoint.Action) failpoint.Order {
	return failpoint.Order{Point: p.Point, Action: action.String(), Skip: p.skip, DelayMS: pause}
}

// killed makes an attempt whose leader or daemon is killed at a step. Not every attempt passes every step.
func (n *node) killed(p where) {
	n.t.Helper()
	if p.daemon {
		n.end()
		n.begin(p.order(failpoint.Crash))
		c := n.process(role{Job: n.next()})
		var out strings.Builder
		c.Stdout = &out
		if err := c.Start(); err != nil {
			n.t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() { told <- c.Wait() }()
		select {
		case <-n.gone:
			n.disturbs++
			n.daemon = nil
			n.begin()
			if err := <-told; err != nil {
				n.t.Fatal(err)
			}
		case err := <-told: // before the point, or the daemon is killed after its answer
			if err != nil {
				n.t.Fatal(err)
			}
			select {
			case <-n.gone:
				n.disturbs++
				n.daemon = nil
			case <-time.After(time.Second):
				n.end()
			}
			n.begin()
		}
		return
	}
	out, err := n.process(role{Job: n.next(), Points: []failpoint.Order{p.order(failpoint.Crash)}}).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		n.disturbs++
	} else if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
}

// paused makes an attempt whose leader or daemon is paused at a step. It continues when the next leader's attempt has
// succeeded or is in progress.
func (n *node) paused(p where) {
	n.t.Helper()
	r, socket := role{}, leaderSocket
	_ = os.Remove(filepath.Join(n.dir, leaderSocket))
	_ = os.Remove(filepath.Join(n.dir, leaderPoints))
	if p.daemon {
		n.end()
		n.begin(p.order(failpoint.Delay))
		socket = actions.Socket(fault.HalfHost)
	} else {
		r.Points = []failpoint.Order{p.order(failpoint.Delay)}
	}
	r.Job = n.next()
	c := n.process(r)
	if err := c.Start(); err != nil {
		n.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for over := false; !over; {
		if n.passed(socket) {
			n.disturbs++
			break
		}
		select {
		case err := <-ended:
			ended <- err
			over = true
			if n.hadPassed(p) {
				n.disturbs++
			}
		case <-time.After(time.Millisecond):
		}
	}
	n.succeeds()
	if err := <-ended; err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) starts() int {
	b, err := os.ReadFile(filepath.Join(n.dir, halfLog))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

func (n *node) wantLimits(p0, p4 string, kept int) {
	n.t.Helper()
	for policy, want := range map[string]string{"policy0": p0, "policy4": p4} {
		b, err := os.ReadFile(filepath.Join(n.dir, "sysfs/devices/system/cpu/cpufreq", policy, "scaling_max_freq"))
		if err != nil || strings.TrimSpace(string(b)) != want {
			n.t.Errorf("%s: %s, %v: want %s", policy, b, err, want)
		}
	}
	b, err := os.ReadFile(filepath.Join(n.dir, actions.File))
	if err != nil {
		n.t.Fatal(err)
	}
	l, err := actions.Decode(b)
	if err != nil || len(l.Limits) != kept {
		n.t.Errorf("%+v, %v: want %d limits", l, err, kept)
	}
}

// stale: the previous leader can start nothing.
func (n *node) stale() {
	n.t.Helper()
	j := n.job
	j.Attempt.Attempt++
	j.Token--
	if res, err := (role{Dir: n.dir, Job: j}).attempt(); err != nil || res.Outcome != response.StaleToken {
		n.t.Errorf("under an old token: %+v, %v", res, err)
	}
}

// TestKilledAndPaused: a process is killed or paused at any step. The half is restarted once, and the undo lifts all
// limits.
func TestKilledAndPaused(t *testing.T) {
	steps := []where{
		{failpoint.ActAdmitted, 0, true}, {failpoint.ActNoted, 0, true}, {failpoint.ActMade, 0, true}, {failpoint.ActKept, 0, true},
		{failpoint.ExecutorFenced, 0, false}, {failpoint.NodeOrder, 0, false}, {failpoint.NodeOrdered, 0, false},
		{failpoint.NodeHeard, 0, false}, {failpoint.NodeHeard, 1, false},
	}
	var killed, paused atomic.Int64
	t.Run("all", func(t *testing.T) {
		for _, p := range steps {
			t.Run(fmt.Sprintf("%s-%d", p.Point, p.skip), func(t *testing.T) {
				t.Parallel()
				for range *rounds {
					killed.Add(disturbed(t, p, (*node).killed))
					paused.Add(disturbed(t, p, (*node).paused))
				}
			})
		}
	})
	t.Logf("killed %d times, paused %d times, at %d steps", killed.Load(), paused.Load(), len(steps))
}

// disturbed disturbs attempts, rechecks and undos, and returns the number of disturbances.
func disturbed(t *testing.T, p where, disturb func(*node, where)) int64 {
	t.Helper()
	restart := newNode(t, response.NodeRestartHalf, map[string]string{"half": "host"})
	restart.begin()
	disturb(restart, p)
	disturb(restart, p)
	restart.succeeds()
	restart.stale()
	if n := restart.starts(); n != 1 {
		t.Errorf("started %d times: want once", n)
	}
	restart.end()
	limit := newNode(t, response.NodeLimitFrequency, map[string]string{"percent": "50"})
	limit.begin()
	disturb(limit, p)
	disturb(limit, p)
	limit.succeeds()
	limit.wantLimits("2400000", "1800000", 2)
	limit.job.Undo = true
	disturb(limit, p)
	disturb(limit, p)
	limit.succeeds()
	limit.stale()
	limit.wantLimits("4800000", "3600000", 0)
	limit.end()
	if restart.disturbs < 1 || limit.disturbs < 2 {
		t.Errorf("killed or paused %d and %d times: it does not come by", restart.disturbs, limit.disturbs)
	}
	return int64(restart.disturbs + limit.disturbs)
}
