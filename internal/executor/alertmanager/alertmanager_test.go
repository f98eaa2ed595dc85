package alertmanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// bound is the timeout for an event that a test waits for.
const bound = time.Minute

// program finds an Alertmanager. Without one the test is skipped, or fails where nothing may be missing.
func program(t *testing.T) string {
	t.Helper()
	return requirements.Program(t, "Debian's package prometheus-alertmanager", "prometheus-alertmanager", "alertmanager")
}

// manager is a real Alertmanager.
type manager struct {
	t    *testing.T
	addr string
	stop context.CancelFunc
	done chan struct{}
	log  bytes.Buffer
}

// start runs an Alertmanager at an address. It has no peers and no state from an earlier one.
func start(t *testing.T, addr string) *manager {
	t.Helper()
	return startWith(t, addr, "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
}

func startWith(t *testing.T, addr, cfg string) *manager {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "alertmanager.yml")
	if err := os.WriteFile(file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	m := &manager{t: t, addr: addr, stop: cancel, done: make(chan struct{})}
	c := exec.CommandContext(ctx, program(t), "--config.file="+file, "--storage.path="+dir, "--web.listen-address="+addr,
		"--cluster.listen-address=")
	c.Stdout, c.Stderr = &m.log, &m.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(m.done)
		_ = c.Wait()
	}()
	t.Cleanup(m.kill)
	m.waitFor("ready", func() bool {
		resp, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return m
}

func (m *manager) kill() {
	m.stop()
	<-m.done
}

func (m *manager) waitFor(what string, so func() bool) {
	m.t.Helper()
	for end := time.Now().Add(bound); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.kill()
			m.t.Fatalf("not within %s: %s\n%s", bound, what, m.log.String())
		}
	}
}

// got is an alert as Alertmanager returns it.
type got struct {
	Labels, Annotations map[string]string
	StartsAt, EndsAt    time.Time
	GeneratorURL        string
}

// firing returns the firing alerts by node or group.
func (m *manager) firing() map[string]got {
	m.t.Helper()
	resp, err := http.Get("http://" + m.addr + "/api/v2/alerts")
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	var all []got
	if err := json.Unmarshal(b, &all); err != nil {
		m.t.Fatalf("%v: %s", err, b)
	}
	out := map[string]got{}
	for _, a := range all {
		out[a.Labels["node"]+a.Labels["group"]] = a
	}
	return out
}

// run starts an executor with short times, which ends with the test or by stop.
func run(t *testing.T, cfg Config, standing executor.Active) (x *Executor, stop func()) {
	t.Helper()
	return runWith(t, cfg, standing, slog.New(slog.DiscardHandler))
}

func runWith(t *testing.T, cfg Config, standing executor.Active, log *slog.Logger) (x *Executor, stop func()) {
	t.Helper()
	cfg = cfg.Filled()
	if cfg.Resend == config.Duration(time.Minute) {
		cfg.Resend, cfg.Hold = config.Duration(200*time.Millisecond), config.Duration(2*time.Second)
	}
	x, err := newExecutor(cfg, nil, standing, log)
	if err != nil {
		t.Fatal(err)
	}
	x.settle = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return x, stop
}

func jobOf(node string, attempt int, change ...func(*executor.Job)) executor.Job {
	j := executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: "r-" + node,
				Attempt: attempt}, Kind: response.Alertmanager, Parameters: map[string]string{"severity": "critical"},
			Target: response.Target{Node: fault.NodeID(node),
				Component: fault.ComponentHost}, Token: 5, IdempotencyKey: "r-" + node + "/0", Timeout: bound,
		},
		Cluster: "test", Policy: "alert-failed-node", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseHost,
			Since: time.Now().Add(-time.Minute), Detail: `no word for 5s, "dead"`},
	}
	for _, c := range change {
		c(&j)
	}
	return j
}

func undo(j *executor.Job) { j.Undo, j.IdempotencyKey = true, j.IdempotencyKey+"/undo" }

func recheck(j *executor.Job) { j.Recheck = true }

func within(d time.Duration) func(*executor.Job) { return func(j *executor.Job) { j.Timeout = d } }

func do(t *testing.T, x *Executor, j executor.Job) {
	t.Helper()
	if r := x.Do(t.Context(), j); r.Outcome != response.Succeeded {
		t.Fatalf("%+v", r)
	}
}

// TestRealAlertmanagerFiresAndResolves sends alerts to a real Alertmanager. They outlast the end time of one send, end
// when they are undone, and expire when their supervisor is gone. Another supervisor keeps them firing.
func TestRealAlertmanagerFiresAndResolves(t *testing.T) {
	m := start(t, freeport.Addr(t).String())
	cfg := Config{URLs: []string{"http://" + m.addr}, Labels: map[string]string{"site": "pisa"}, Link: "https://lofamo.example/responses",
		// The alerts must outlast a sender that stalls for seconds.
		Resend: config.Duration(200 * time.Millisecond), Hold: config.Duration(8 * time.Second)}
	x, stop := run(t, cfg, nil)
	do(t, x, jobOf("n1", 1))
	do(t, x, jobOf("n2", 1))
	group := jobOf("", 1, func(j *executor.Job) {
		j.Response, j.Target, j.Members = "r-g", response.Target{Group: "ROW x=1"}, make([]fault.NodeID, 40)
		for i := range j.Members {
			j.Members[i] = fault.NodeID(fmt.Sprintf("m%d", i))
		}
	})
	do(t, x, group)
	first := m.firing()
	a := first["n1"]
	for k, want := range map[string]string{"alertname": "LofamoNodeFault", "cluster": "test", "node": "n1", "component": "host",
		"policy": "alert-failed-node", "severity": "critical", "site": "pisa"} {
		if a.Labels[k] != want {
			t.Errorf("label %s: %q, want %q", k, a.Labels[k], want)
		}
	}
	if len(a.Labels) != 7 || a.GeneratorURL != cfg.Link || a.Annotations["summary"] != "test: n1/host is FAILED, cause HOST" ||
		a.Annotations["description"] != `no word for 5s, "dead"` || a.Annotations["response"] != "r-n1" {
		t.Errorf("%+v", a)
	}
	if d := time.Since(a.StartsAt); d < time.Minute || d > 2*time.Minute {
		t.Errorf("it started %s ago, and the fault a minute", d)
	}
	if g := first["ROW x=1"]; g.Labels["alertname"] != "LofamoGroupFault" ||
		g.Annotations["summary"] != "test: group ROW x=1 (40 nodes) is FAILED, cause HOST" ||
		!strings.HasSuffix(g.Annotations["members"], "m31 and 8 more") {
		t.Errorf("%+v", g)
	}
	m.waitFor("alerts that fire after the end that was sent first", func() bool {
		now := m.firing()
		if len(now) != 3 {
			t.Fatalf("%+v", now)
		}
		return now["n1"].EndsAt.After(a.EndsAt) && time.Now().After(a.EndsAt)
	})
	do(t, x, jobOf("n1", 2, undo))
	if now := m.firing(); len(now) != 2 || now["n1"].Labels != nil {
		t.Errorf("after its end: %+v", now)
	}
	do(t, x, jobOf("n9", 1, undo)) // never fired, or fired under an earlier supervisor
	stop()
	var mu sync.Mutex
	stood, asked := []executor.Job{jobOf("n2", 1)}, 0
	next, _ := run(t, cfg, func(context.Context, ...response.Kind) ([]executor.Job, bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked%2 == 0 {
			return nil, false, errors.New("the store does not answer")
		}
		return stood, true, nil
	})
	m.waitFor("the end of what nobody sends any more", func() bool { return len(m.firing()) == 1 })
	last := m.firing()["n2"].EndsAt
	m.waitFor("another supervisor's sending", func() bool { return m.firing()["n2"].EndsAt.After(last) })
	do(t, next, jobOf("n2", 2, undo, recheck))
	if now := m.firing(); len(now) != 0 {
		t.Errorf("%+v", now)
	}
	do(t, next, jobOf("n3", 1)) // is never committed
	mu.Lock()
	stood = nil
	mu.Unlock()
	m.waitFor("the end of what does not stand", func() bool { return len(m.firing()) == 0 })
}

// notice is the webhook notification of an Alertmanager.
type notice struct {
	Alerts []struct {
		Status, Fingerprint string
		Labels, Annotations map[string]string
	}
}

// TestNextLeaderResolves: receivers of a real Alertmanager see one and the same alert across leaders. Its labels stay;
// its annotations may change. The next leader resolves it even if it never sent the alert or sent it with other
// annotations. Nothing here expires.
func TestNextLeaderResolves(t *testing.T) {
	heard := make(chan notice, 100)
	people := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var n notice
		if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
			t.Error(err)
		}
		heard <- n
	}))
	t.Cleanup(people.Close)
	m := startWith(t, freeport.Addr(t).String(), fmt.Sprintf(`
route: {receiver: people, group_by: ["..."], group_wait: 10ms, group_interval: 50ms, repeat_interval: 1h}
receivers: [{name: people, webhook_configs: [{url: %q, send_resolved: true}]}]
`, people.URL))
	t.Cleanup(m.kill)         // before the receiver that it notifies
	is := map[string]string{} // status of each alert at the receiver, by fingerprint
	node := map[string]string{}
	told := func(status string, nodes ...string) {
		t.Helper()
		deadline := time.After(bound)
		for _, n := range nodes {
			for node[n] == "" || is[node[n]] != status {
				select {
				case got := <-heard:
					for _, a := range got.Alerts {
						if was := node[a.Labels["node"]]; was != "" && was != a.Fingerprint {
							t.Fatalf("a second alert of %s: %+v", a.Labels["node"], a)
						}
						node[a.Labels["node"]], is[a.Fingerprint] = a.Fingerprint, a.Status
					}
				case <-deadline:
					t.Fatalf("nobody was told that %s is %s: %v", n, status, is)
				}
			}
		}
	}
	cfg := Config{URLs: []string{"http://" + m.addr}, Resend: config.Duration(10 * time.Second), Hold: config.Duration(10 * time.Minute)}
	first, lost := run(t, cfg, nil)
	do(t, first, jobOf("n1", 1))
	do(t, first, jobOf("n2", 1))
	told("firing", "n1", "n2")
	lost()
	later := func(j *executor.Job) {
		j.Token, j.Fault = 6, executor.Fault{State: fault.Sick, Cause: fault.CauseNode, Since: time.Now(), Detail: "known otherwise"}
	}
	stands := jobOf("n2", 1, later)
	var undone atomic.Bool
	next, _ := run(t, cfg, func(context.Context, ...response.Kind) ([]executor.Job, bool, error) {
		if undone.Load() {
			return nil, true, nil
		}
		return []executor.Job{stands}, true, nil
	})
	m.waitFor("the next leader's words", func() bool { return m.firing()["n2"].Annotations["description"] == "known otherwise" })
	if now := m.firing(); len(now) != 2 {
		t.Errorf("%+v", now)
	}
	undone.Store(true)
	for _, n := range []string{"n1", "n2"} {
		do(t, next, jobOf(n, 2, later, undo, recheck))
	}
	told("resolved", "n1", "n2")
	if now := m.firing(); len(now) != 0 {
		t.Errorf("they fire: %+v", now)
	}
}

// TestRestartedAlertmanagerGetsFiringAlerts: one of two Alertmanagers is down. It receives all firing alerts when it
// starts, even if it has lost its state.
func TestRestartedAlertmanagerGetsFiringAlerts(t *testing.T) {
	m, addr := start(t, freeport.Addr(t).String()), freeport.Addr(t).String()
	x, _ := run(t, Config{URLs: []string{"http://" + m.addr, "http://" + addr + "/"}}, nil)
	if r := x.Do(t.Context(), jobOf("n1", 1)); r.Outcome != response.Succeeded {
		t.Errorf("%+v", r)
	}
	do(t, x, jobOf("n2", 1))
	do(t, x, jobOf("n2", 2, undo))
	second := start(t, addr)
	second.waitFor("what fires", func() bool { return len(second.firing()) == 1 })
	m.kill()
	do(t, x, jobOf("n3", 1))
	m = start(t, m.addr)
	m.waitFor("what fires, at one that has lost all", func() bool { return len(m.firing()) == 2 })
}

func TestAlertmanagerKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Remembers, func(t *testing.T) executortest.Harness {
		var mu sync.Mutex
		fired := map[string]bool{}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var all []wire
			if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, a := range all {
				fired[a.Labels["node"]] = true
			}
		}))
		t.Cleanup(s.Close)
		x, _ := run(t, Config{URLs: []string{s.URL}}, nil)
		return executortest.Harness{Executor: x, Job: jobOf("n1", 1), Acts: func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(fired)
		}}
	})
}

// TestUnreachedAlertIsNotSentLater: an alert that reached no Alertmanager is Unchanged and is not sent later. An alert that may have
// reached one is NotKnown.
func TestUnreachedAlertIsNotSentLater(t *testing.T) {
	addr := freeport.Addr(t)
	cfg := Config{URLs: []string{"http://" + addr.String()}, Resend: config.Duration(time.Hour), Hold: config.Duration(2 * time.Hour)}
	said := &lines{}
	x, _ := runWith(t, cfg, nil, slog.New(slog.NewTextHandler(said, nil)))
	// The deadline comes right after the first refusal: then no request is in flight until the executor tries again.
	ctx := deadline.When(t, func() bool { return said.n.Load() > 0 })
	if r := x.Do(ctx, jobOf("n1", 1)); r.Outcome != response.Unchanged ||
		!strings.Contains(r.Detail, "refused") {
		t.Errorf("%+v", r)
	}
	if r := x.Do(t.Context(), jobOf("n1", 2, recheck, within(50*time.Millisecond))); r.Outcome != response.NotKnown {
		t.Errorf("%+v", r)
	}
	if r := x.Do(t.Context(), jobOf("n1", 2)); r.Outcome != response.NotKnown {
		t.Errorf("the same attempt again: %+v", r)
	}
	if r := x.Do(t.Context(), jobOf("n1", 3, func(j *executor.Job) { j.Token = 4 })); r.Outcome != response.StaleToken {
		t.Errorf("a lower token: %+v", r)
	}
	heard := make(chan string, 100)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		heard <- string(b)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	s.Listener.Close()
	s.Listener = listenAt(t, addr.String())
	s.Start()
	t.Cleanup(s.Close)
	ctx = deadline.When(t, func() bool { return len(heard) > 1 })
	if r := x.Do(ctx, jobOf("n2", 1)); r.Outcome != response.NotKnown || !strings.Contains(r.Detail, "503") {
		t.Errorf("%+v after %d requests", r, len(heard))
	}
	with := 0
	for len(heard) > 0 {
		if b := <-heard; strings.Contains(b, `"n1"`) {
			with++
		}
	}
	if with > 1 { // one may have been in flight when the attempt was given up
		t.Errorf("what was given up is sent %d times", with)
	}
}

// TestStatusOfIncompleteAnswerCounts: an Alertmanager, or a proxy in front of it, answers with a long page, or with one that never ends.
// An alert that it accepts with 200 is sent once, and an error names the status.
func TestStatusOfIncompleteAnswerCounts(t *testing.T) {
	page := "no such page" + strings.Repeat("x", 2*executor.MaxHTTPAnswer)
	for name, c := range map[string]struct {
		status  int
		endless bool
		want    response.Outcome
		detail  string
	}{
		"200, long":    {http.StatusOK, false, response.Succeeded, ""},
		"200, endless": {http.StatusOK, true, response.Succeeded, ""},
		"404, long":    {http.StatusNotFound, false, response.NotKnown, "status 404"},
		"404, endless": {http.StatusNotFound, true, response.NotKnown, "status 404"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(c.status)
				if requests.Add(1); !c.endless {
					_, _ = w.Write([]byte(page))
					return
				}
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}))
			t.Cleanup(s.Close)
			x, _ := run(t, Config{URLs: []string{s.URL}, RequestTimeout: config.Duration(time.Second), Resend: config.Duration(time.Hour),
				Hold: config.Duration(4 * time.Hour)}, nil)
			ctx := deadline.When(t, func() bool { return requests.Load() > 1 }) // the executor sends it again
			if r := x.Do(ctx, jobOf("n1", 1)); r.Outcome != c.want || !strings.Contains(r.Detail, c.detail) {
				t.Errorf("%+v after %d requests", r, requests.Load())
			}
		})
	}
}

// lines counts the lines of a log.
type lines struct{ n atomic.Int32 }

func (l *lines) Write(b []byte) (int, error) {
	l.n.Add(1)
	return len(b), nil
}

// TestStoppedExecutorSendsNothing: without Run the executor sends nothing, and Do returns at its deadline.
func TestStoppedExecutorSendsNothing(t *testing.T) {
	x, stop := run(t, Config{URLs: []string{"http://" + freeport.Addr(t).String()}}, nil)
	stop()
	if r := x.Do(t.Context(), jobOf("n1", 1, within(50*time.Millisecond))); r.Outcome != response.Unchanged {
		t.Errorf("%+v", r)
	}
}

// TestTokenFileIsReadForEveryRequest: the executor reads the bearer token for every request and rejects an invalid one.
func TestTokenFileIsReadForEveryRequest(t *testing.T) {
	var mu sync.Mutex
	var given []string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		given = append(given, r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{URLs: []string{s.URL}, BearerTokenFile: file}
	if _, err := New(cfg, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "bearer token") {
		t.Errorf("%v", err)
	}
	write("eins\n")
	said := &lines{}
	x, _ := runWith(t, cfg, nil, slog.New(slog.NewTextHandler(said, nil)))
	do(t, x, jobOf("n1", 1))
	write("zwei")
	do(t, x, jobOf("n2", 1))
	write("Geheimnis\nmit Zeile")
	before := said.n.Load()
	refused := deadline.When(t, func() bool { return said.n.Load() > before })
	if r := x.Do(refused, jobOf("n3", 1)); r.Outcome != response.Unchanged ||
		strings.Contains(r.Detail, "Geheimnis") {
		t.Errorf("%+v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(given, " "); !strings.HasPrefix(got, "Bearer eins") || !strings.Contains(got, "Bearer zwei") ||
		strings.Contains(got, "Geheimnis") {
		t.Errorf("%q", got)
	}
}

// TestThousandAlertsTakeFewRequests: a thousand simultaneous alerts take few requests.
func TestThousandAlertsTakeFewRequests(t *testing.T) {
	const n = 1000
	var mu sync.Mutex
	requests, alerts := 0, map[string]bool{}
	var begun sync.WaitGroup
	begun.Add(n)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun.Wait() // so that all requests are simultaneous, even on a busy machine
		var all []wire
		if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
		mu.Lock()
		defer mu.Unlock()
		requests++
		for _, a := range all {
			alerts[a.Labels["node"]] = true
		}
	}))
	t.Cleanup(s.Close)
	cfg := Config{URLs: []string{s.URL}, Resend: config.Duration(10 * time.Minute)}
	x, _ := run(t, cfg, nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			begun.Done()
			if r := x.Do(t.Context(), jobOf(fmt.Sprintf("n%d", i), 1)); r.Outcome != response.Succeeded {
				t.Errorf("%+v", r)
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(alerts) != n || requests > n/10 {
		t.Errorf("%d alerts in %d requests", len(alerts), requests)
	}
}

func listenAt(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Earlier versions accepted a label notice in the configuration. It does not hide the notice of an escalation.
func TestConfiguredNoticeIsIgnored(t *testing.T) {
	x, err := New(Config{URLs: []string{"http://127.0.0.1:1"}, Labels: map[string]string{"notice": "x", "site": "pisa"}}, nil,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first := x.alert(jobOf("n1", 1)).Labels
	again := x.alert(jobOf("n1", 1, func(j *executor.Job) { j.Notice = 2 })).Labels
	if _, given := first["notice"]; given || first["site"] != "pisa" || again["notice"] != "2" {
		t.Errorf("labels %v, after an escalation %v", first, again)
	}
}

// TestAlertNamesItsIncident: an alert names its incident. Only an alert that repeats after an escalation has another identity, since
// Alertmanager notifies no receiver of the same one.
func TestAlertNamesItsIncident(t *testing.T) {
	x, err := New(Config{URLs: []string{"http://127.0.0.1:1"}}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	plain := x.alert(jobOf("n1", 1))
	first := x.alert(jobOf("n1", 1, func(j *executor.Job) { j.Incident = "k3f9-aaaaaaaa" }))
	again := x.alert(jobOf("n1", 1, func(j *executor.Job) { j.Incident, j.Notice = "k3f9-aaaaaaaa", 2 }))
	if first.Annotations["incident"] != "k3f9-aaaaaaaa" || plain.Annotations["incident"] != "" {
		t.Errorf("annotations %v, without an incident %v", first.Annotations, plain.Annotations)
	}
	if !maps.Equal(first.Labels, plain.Labels) || maps.Equal(first.Labels, again.Labels) || again.Labels["notice"] != "2" {
		t.Errorf("labels %v, %v, after an escalation %v", plain.Labels, first.Labels, again.Labels)
	}
}
