package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/response"
)

// asProgram makes this test binary the program that the executor process runs, asProcess the process itself, and
// asLeader a leading supervisor.
const (
	asProgram = "LOFAMO_TEST_AS_PROGRAM"
	asProcess = "LOFAMO_TEST_AS_PROCESS"
	asLeader  = "LOFAMO_TEST_AS_LEADER"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asProgram) != "":
		os.Exit(act(os.Args[1:]))
	case os.Getenv(asProcess) != "":
		os.Exit(serve(os.Getenv(asProcess)))
	case os.Getenv(asLeader) != "":
		os.Exit(lead(os.Getenv(asLeader)))
	}
	syscall.Umask(0o002) // as on machines where each user has a private group
	code := withProgram(m.Run)
	process.CloseSlurm()
	os.Exit(code)
}

// program is a copy of this test binary that only its owner may write. The original may be group-writable, depending on
// the umask, and would be refused.
var program string

func withProgram(run func() int) int {
	dir, err := os.MkdirTemp("", "lofamo-executor-")
	if err == nil {
		program = filepath.Join(dir, "act")
		err = copySelf(program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return run()
}

func copySelf(to string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// act records in a file that it has run, and waits until another file is gone.
func act(args []string) int {
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, strings.Join(args[2:], " "))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(args[1]); err != nil {
			return 0
		}
	}
	return 1
}

// bench is a process whose command "act" records that it has run, and continues as long as the file hold exists.
type bench struct {
	*processtest.Fixture
	log, hold string
}

func newBench(t *testing.T) bench {
	f := processtest.New(t)
	b := bench{f, filepath.Join(f.Dir, "acts"), filepath.Join(f.Dir, "hold")}
	f.Config.Commands = []process.Command{{
		Name: "act", Path: program, Args: []string{b.log, b.hold, "${response}", "${step}", "${attempt}",
			"${token}"}, Env: map[string]string{asProgram: "1", "GORACE": os.Getenv("GORACE") + " atexit_sleep_ms=0"},
		Parameters: map[string]string{"response": "[a-z0-9-]+", "step": "[0-9]+", "attempt": "[0-9]+", "token": "[0-9]+"},
	}}
	return b
}

func job(token uint64, id string, attempt int) executor.Job {
	return processtest.Job(response.Command, token, id, 0, attempt, map[string]string{"command": "act"})
}

func TestRemoteKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Remembers, func(t *testing.T) executortest.Harness {
		b := newBench(t)
		b.Start(t)
		return executortest.Harness{Executor: b.Supervisor(t, b.Config.Listen), Job: job(5, "r5-1", 1),
			Acts: func() int { return strings.Count(b.acts(t), "\n") }}
	})
}

// acts returns the recorded acts.
func (b bench) acts(t *testing.T) string {
	t.Helper()
	out, err := os.ReadFile(b.log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(out)
}

// wantActs waits for acts, which are recorded before they are answered.
func (b bench) wantActs(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); b.acts(t) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("acts %q, want %q", b.acts(t), want)
		}
	}
}

func want(t *testing.T, r executor.Result, o response.Outcome, detail string) {
	t.Helper()
	if r.Outcome != o || !strings.Contains(r.Detail, detail) {
		t.Errorf("outcome %d, %q: want %d, %q", r.Outcome, r.Detail, o, detail)
	}
}

// TestAttemptIsMadeOnceAcrossRestarts: each attempt is made once and only under the highest token, also across restarts of the process.
func TestAttemptIsMadeOnceAcrossRestarts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stop := b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	do := func(j executor.Job) executor.Result { return processtest.Do(t, x, j) }
	want(t, do(job(5, "r5-1", 1)), response.Succeeded, "exit code 0")
	want(t, do(job(5, "r5-1", 1)), response.Succeeded, "exit code 0") // the answer of the first
	want(t, do(job(5, "r5-1", 2)), response.Succeeded, "")
	want(t, do(job(5, "r5-1", 1)), response.NotKnown, "attempt 2 has been seen")
	want(t, do(job(4, "r4-1", 1)), response.StaleToken, "has seen 5")
	want(t, do(job(6, "r5-1", 2)), response.Succeeded, "") // not new, but its token counts
	stop()
	b.Start(t)
	x = b.Supervisor(t, b.Config.Listen)
	want(t, do(job(5, "r5-1", 3)), response.StaleToken, "has seen 6")
	want(t, do(job(6, "r5-1", 1)), response.NotKnown, "attempt 2 has been seen")
	want(t, do(job(6, "r5-1", 2)), response.Succeeded, "exit code 0")
	want(t, do(job(6, "r5-1", 3)), response.Succeeded, "")
	other := job(6, "r5-1", 3)
	other.Target.Node = "n2"
	want(t, do(other), response.NotKnown, "for another thing")
	b.wantActs(t, "r5-1 0 1 5\nr5-1 0 2 5\nr5-1 0 3 6\n")
}

// TestInvalidRequestChangesNothing: an invalid or unconfigured request changes nothing.
func TestInvalidRequestChangesNothing(t *testing.T) {
	b := newBench(t)
	b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	for name, tc := range map[string]struct {
		change func(j *executor.Job)
		detail string
	}{
		"cluster":   {func(j *executor.Job) { j.Cluster = "another" }, `cluster: given "another"`},
		"kind":      {func(j *executor.Job) { j.Kind = response.PowerReset }, "not configured"},
		"no kind":   {func(j *executor.Job) { j.Kind = "x" }, "kind: given"},
		"key":       {func(j *executor.Job) { j.IdempotencyKey = "" }, "idempotency_key"},
		"token":     {func(j *executor.Job) { j.Token = 0 }, "token: given 0"},
		"attempt":   {func(j *executor.Job) { j.Attempt.Attempt = 0 }, "attempt.attempt"},
		"response":  {func(j *executor.Job) { j.Response = strings.Repeat("r", 300) }, "attempt.response"},
		"node":      {func(j *executor.Job) { j.Target.Node = "" }, "target.node"},
		"parameter": {func(j *executor.Job) { j.Parameters = map[string]string{"command": strings.Repeat("x", 5000)} }, "parameters"},
		"command":   {func(j *executor.Job) { j.Parameters = map[string]string{"command": "rm"} }, "no command of that name"},
		"pattern":   {func(j *executor.Job) { j.Response = "r;x" }, "want one that matches"},
		"undo":      {func(j *executor.Job) { j.Undo = true }, "cannot be put back"},
	} {
		t.Run(name, func(t *testing.T) {
			j := job(5, "r-"+strings.ReplaceAll(name, " ", "-"), 1)
			tc.change(&j)
			want(t, processtest.Do(t, x, j), response.Unchanged, tc.detail)
		})
	}
	j := job(5, "r-recheck", 1)
	j.Recheck = true
	want(t, processtest.Do(t, x, j), response.NotKnown, "cannot be looked for")
	b.wantActs(t, "")
}

// TestOnlySupervisorsReachMethods: other certificates do not reach a method, and a supervisor talks to an executor process only.
func TestOnlySupervisorsReachMethods(t *testing.T) {
	b := newBench(t)
	b.Start(t)
	for _, role := range []pki.Role{pki.RoleOperator, pki.RoleViewer, pki.RoleExecutor} {
		x, err := executor.NewRemote(config.ExecutorClient{Address: b.Config.Listen}, processtest.Cluster, b.Certificate(t, role), nil)
		if err != nil {
			t.Fatal(err)
		}
		want(t, processtest.Do(t, x, job(5, "r", 1)), response.Unchanged, "executor process")
		_ = x.Close()
	}
	b.wantActs(t, "")
	b.Config.TLS = b.Certificate(t, pki.RoleOperator)
	if _, err := process.New(b.Config, nil); err == nil || !strings.Contains(err.Error(), "tls.cert") {
		t.Errorf("a process with an operator's certificate: %v", err)
	}
}

// TestUnreachableExecutorIsUnchanged: if nothing has left this host, nothing has happened.
func TestUnreachableExecutorIsUnchanged(t *testing.T) {
	b := newBench(t)
	x := b.Supervisor(t, b.Config.Listen)
	want(t, processtest.Do(t, x, job(5, "r", 1)), response.Unchanged, "refused")
}

// TestAttemptSurvivesBrokenConnection: an attempt continues without its caller, is not made twice, and the caller learns its outcome.
func TestAttemptSurvivesBrokenConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Start(t)
	p := newProxy(t, b.Config.Listen)
	x := b.Supervisor(t, p.addr())
	b.holdOn(t)
	got := doAside(t, x, job(5, "r", 1))
	b.wantActs(t, "r 0 1 5\n")
	p.cut()
	b.letGo(t)
	want(t, <-got, response.Succeeded, "exit code 0")
	b.wantActs(t, "r 0 1 5\n")
}

// TestMissingAnswerIsNotKnown: if the process cannot be reached for the outcome, it is NotKnown and the attempt is not
// repeated.
func TestMissingAnswerIsNotKnown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Start(t)
	p := newProxy(t, b.Config.Listen)
	x := b.Supervisor(t, p.addr())
	b.holdOn(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan executor.Result, 1)
	go func() { got <- x.Do(ctx, job(5, "r", 1)) }()
	b.wantActs(t, "r 0 1 5\n")
	p.refuse()
	cancel(executor.ErrStopped)
	want(t, <-got, response.NotKnown, "the attempt's outcome")
	b.letGo(t)
	b.wantActs(t, "r 0 1 5\n")
}

// TestCancelledAttemptIsNotKnown: a cancelled attempt is ended and has the outcome NotKnown.
func TestCancelledAttemptIsNotKnown(t *testing.T) {
	b := newBench(t)
	b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	b.holdOn(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan executor.Result, 1)
	go func() { got <- x.Do(ctx, job(5, "r", 1)) }()
	b.wantActs(t, "r 0 1 5\n")
	cancel(executor.ErrStopped)
	want(t, <-got, response.NotKnown, "ended at its deadline")
}

// TestAttemptSurvivesLostLeadership: an attempt continues after its supervisor has lost leadership, and a later caller learns its outcome.
func TestAttemptSurvivesLostLeadership(t *testing.T) {
	b := newBench(t)
	b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	b.holdOn(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan executor.Result, 1)
	go func() { got <- x.Do(ctx, job(5, "r", 1)) }()
	b.wantActs(t, "r 0 1 5\n")
	cancel()
	want(t, <-got, response.NotKnown, "may go on")
	b.letGo(t)
	want(t, processtest.Do(t, x, job(5, "r", 1)), response.Succeeded, "exit code 0")
	b.wantActs(t, "r 0 1 5\n")
}

// TestNextLeaderLearnsOutcome: the next leader asks for the outcome of an attempt. The process waits for one in progress, and
// refuses one that arrives only after the question.
func TestNextLeaderLearnsOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stop := b.Start(t)
	p := newProxy(t, b.Config.Listen)
	old, next := b.Supervisor(t, p.addr()), b.Supervisor(t, b.Config.Listen)
	settle := func(d time.Duration, j executor.Job) executor.Result {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		j.Began = time.Now()
		return next.Settle(ctx, j)
	}
	const short, long = 200 * time.Millisecond, time.Minute
	b.holdOn(t)
	first := doAside(t, old, job(5, "r", 1))
	b.wantActs(t, "r 0 1 5\n")
	p.cut()
	want(t, settle(short, job(6, "r", 1)), response.NotKnown, "does not report the outcome")
	b.letGo(t)
	want(t, settle(long, job(6, "r", 1)), response.Succeeded, "exit code 0")
	<-first
	want(t, settle(long, job(6, "late", 1)), response.Unchanged, "it never came")
	want(t, processtest.Do(t, old, job(5, "late", 1)), response.StaleToken, "has seen 6")
	want(t, processtest.Do(t, next, job(6, "late", 1)), response.Unchanged, "it never came")
	want(t, processtest.Do(t, next, job(6, "late", 2)), response.Succeeded, "exit code 0")
	if acts := b.acts(t); strings.Count(acts, "late 0 1 ") != 0 || strings.Count(acts, "late 0 2 6\n") != 1 {
		t.Errorf("%q", acts)
	}
	stop()
	want(t, settle(short, job(7, "r", 1)), response.NotKnown, "does not report the outcome")
}

// TestNewLedgerDoesNotTellOlderOutcomes: an attempt from before 'lofamo-executor init', or from about that time, may have been in an
// earlier ledger.
func TestNewLedgerDoesNotTellOlderOutcomes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	made := time.Now()
	if _, err := process.Init(b.Config.StateDir, processtest.Cluster, true, made); err != nil {
		t.Fatal(err)
	}
	b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	settle := func(attempt int, began time.Time) executor.Result {
		j := job(5, "r", attempt)
		j.Began = began
		return x.Settle(t.Context(), j)
	}
	const older = "may be older than this ledger"
	want(t, settle(1, made.Add(-time.Hour)), response.NotKnown, older)
	want(t, settle(1, time.Time{}), response.NotKnown, older) // as a supervisor of an earlier version asks
	want(t, settle(2, made.Add(time.Minute)), response.NotKnown, older)
	want(t, settle(3, made.Add(time.Minute+time.Nanosecond)), response.Unchanged, "it never came")
	want(t, settle(4, time.Time{}), response.Unchanged, "it never came")
	for attempt := range 4 { // the process refuses all of them from now on
		processtest.Do(t, x, job(5, "r", attempt+1))
	}
	if acts := b.acts(t); acts != "" {
		t.Errorf("%q: want no act", acts)
	}
}

// TestAttemptWithSupersededTokenChangedNothing: the process has refused the attempt, so the next leader may begin another one.
func TestAttemptWithSupersededTokenChangedNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Config.AtOnce = 1
	b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	b.holdOn(t)
	first := doAside(t, x, job(5, "r", 1))
	b.wantActs(t, "r 0 1 5\n")
	waits := doAside(t, x, job(5, "waits", 1))
	b.inLedger(t, `"response":"waits"`)
	newer := doAside(t, x, job(6, "newer", 1))
	b.inLedger(t, `"token":6`)
	b.letGo(t)
	<-first
	want(t, <-waits, response.StaleToken, "has seen 6")
	<-newer
	want(t, x.Settle(t.Context(), job(6, "waits", 1)), response.Unchanged, "has seen 6")
	if acts := b.acts(t); strings.Contains(acts, "waits ") {
		t.Errorf("%q", acts)
	}
}

// TestAttemptsAtOneStepRunInTurn: the next leader's attempt at a step begins when the one before has ended, even if that one's
// leader is gone.
func TestAttemptsAtOneStepRunInTurn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Start(t)
	p := newProxy(t, b.Config.Listen)
	old := b.Supervisor(t, p.addr())
	b.holdOn(t)
	first := doAside(t, old, job(5, "r", 1))
	b.wantActs(t, "r 0 1 5\n")
	p.cut()
	second := doAside(t, b.Supervisor(t, b.Config.Listen), job(6, "r", 2))
	b.inLedger(t, `"token":6`)
	want(t, processtest.Do(t, old, job(5, "other", 1)), response.StaleToken, "has seen 6")
	acts := b.acts(t)
	b.letGo(t)
	want(t, <-second, response.Succeeded, "")
	<-first
	if !strings.HasPrefix(acts, "r 0 1 5\n") || strings.Contains(acts, "r 0 2 6") {
		t.Errorf("before the first had ended: %q", acts)
	}
	if acts := b.acts(t); strings.Count(acts, "r 0 1 5\n") != 1 || strings.Count(acts, "r 0 2 6\n") != 1 {
		t.Errorf("%q", acts)
	}
}

// TestStoppingProcessEndsAttempts: a stopping process ends running attempts, reports that, and reports the same after a restart.
func TestStoppingProcessEndsAttempts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Config.StopTimeout = 0
	stop := b.Start(t)
	x := b.Supervisor(t, b.Config.Listen)
	b.holdOn(t)
	got := doAside(t, x, job(5, "r", 1))
	b.wantActs(t, "r 0 1 5\n")
	stop()
	b.letGo(t)
	b.Start(t)
	want(t, <-got, response.NotKnown, "")
	want(t, processtest.Do(t, x, job(5, "r", 1)), response.NotKnown, "ended at its deadline")
	b.wantActs(t, "r 0 1 5\n")
}

// TestHalfOpenConnection: a silent connection does not delay the end of the process.
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Config.StopTimeout = config.Duration(time.Minute)
	stop := b.Start(t)
	c, err := net.Dial("tcp", b.Config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	began := time.Now()
	stop()
	if d := time.Since(began); d > time.Duration(b.Config.StopTimeout)/2 {
		t.Errorf("it took %s: want less than the time of attempts in progress, %s", d, b.Config.StopTimeout)
	}
}

func (b bench) holdOn(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(b.hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (b bench) letGo(t *testing.T) {
	t.Helper()
	if err := os.Remove(b.hold); err != nil {
		t.Fatal(err)
	}
}

func doAside(t *testing.T, x executor.Executor, j executor.Job) <-chan executor.Result {
	got := make(chan executor.Result, 1)
	go func() { got <- processtest.Do(t, x, j) }()
	return got
}

// proxy forwards connections until refuse.
type proxy struct {
	l       net.Listener
	refused atomic.Bool
	passed  atomic.Int64 // bytes to the other end
	mu      sync.Mutex
	conns   []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l}
	t.Cleanup(func() { _ = l.Close(); p.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil || p.refused.Load() {
				_ = in.Close()
				if err == nil {
					_ = out.Close()
				}
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
			go func() { _, _ = io.Copy(io.MultiWriter(out, counter{&p.passed}), in); _ = out.Close() }()
		}
	}()
	return p
}

// counter counts the bytes written.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// cut closes all connections; new ones are forwarded.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// refuse closes all connections and forwards no new ones.
func (p *proxy) refuse() {
	p.refused.Store(true)
	p.cut()
}

// serve runs a separate process until it is killed.
func serve(path string) int {
	cfg, err := process.Load(path)
	if err == nil {
		var p *process.Process
		if p, err = process.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil))); err == nil {
			if err = p.Start(); err == nil {
				err = <-p.Failed()
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// leading is the task of a separate supervisor.
type leading struct {
	Address string
	TLS     config.SupervisorTLS
	Job     executor.Job
	Dir     string // holds the file that arms its failpoints
}

// lead runs a separate supervisor, which makes one attempt and prints the outcome.
func lead(js string) int {
	var l leading
	err := json.Unmarshal([]byte(js), &l)
	if err == nil {
		err = failpoint.ArmAtStart(l.Dir, "leader")
	}
	x, err2 := executor.NewRemote(config.ExecutorClient{Address: l.Address, DialTimeout: config.Duration(20 * time.Second),
		SettleTimeout: config.Duration(20 * time.Second)}, processtest.Cluster, l.TLS, nil)
	if err := errors.Join(err, err2); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.Job.Timeout)
	defer cancel()
	r := x.Do(ctx, l.Job)
	fmt.Printf("outcome %d: %s\n", r.Outcome, r.Detail)
	return 0
}

// inLedger waits until the ledger on disk contains a text.
func (b bench) inLedger(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		js, err := os.ReadFile(filepath.Join(b.Config.StateDir, "ledger"))
		if err == nil && strings.Contains(string(js), what) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the ledger has no %s: %s", what, js)
		}
	}
}
