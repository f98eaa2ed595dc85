package process

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

func powerJob(method string) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: "r5-1", Step: 1,
				Attempt: 1}, Kind: response.PowerReset, Token: 5, IdempotencyKey: "k", Timeout: time.Minute,
			Target: response.Target{Node: "n1", Component: fault.ComponentHost}, Parameters: map[string]string{"method": method},
		},
		Cluster: "c", Policy: "p",
	}
}

func onePower(t *testing.T, b BMC) *powerExecutor {
	t.Helper()
	x, err := newPower(PowerConfig{Enabled: true, Nodes: map[fault.NodeID]BMC{"n1": b}})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// bmcAt returns the emulator's address as a BMC.
func bmcAt(e *powertest.Emulator) BMC {
	return BMC{
		Method: methodRedfish, Address: e.URL, System: powertest.System, Username: "root", PasswordFile: filepath.Join(e.Dir, "password"),
		CAFile: filepath.Join(e.Dir, "ca.pem"),
	}
}

func wantPower(t *testing.T, r executor.Result, o response.Outcome, detail string) {
	t.Helper()
	if r.Outcome != o || !strings.Contains(r.Detail, detail) {
		t.Errorf("outcome %d, %q: want %d, %q", r.Outcome, r.Detail, o, detail)
	}
}

// TestRedfishOutcomeIsProvenByAnswer: the outcome claims no more than the BMC's answer proves, and a reset is requested once in every case.
func TestRedfishOutcomeIsProvenByAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(e *powertest.Emulator, b *BMC)
		outcome response.Outcome
		detail  string
		resets  []string
	}{
		"good": {func(*powertest.Emulator, *BMC) {}, response.Succeeded, "next boot epoch", []string{"ForceRestart"}},
		"power cycle": {func(_ *powertest.Emulator, b *BMC) { b.Reset = "PowerCycle" }, response.Succeeded,
			"PowerCycle is done; power was On, is On", []string{"PowerCycle"}},
		"own serial":    {func(_ *powertest.Emulator, b *BMC) { b.Serial = "437XR1138R2" }, response.Succeeded, "", []string{"ForceRestart"}},
		"other machine": {func(_ *powertest.Emulator, b *BMC) { b.Serial = "another" }, response.Unchanged, "this is another machine", nil},
		"no system":     {func(_ *powertest.Emulator, b *BMC) { b.System = "/redfish/v1/Systems/2" }, response.Unchanged, "404", nil},
		"password":      {func(_ *powertest.Emulator, b *BMC) { b.Username = "admin" }, response.Unchanged, "401", nil},
		"cannot": {func(e *powertest.Emulator, _ *BMC) { e.Allowed = []string{"On", "ForceOff"} }, response.Unchanged,
			"the system allows On, ForceOff", nil},
		"elsewhere": {func(e *powertest.Emulator, _ *BMC) { e.At = "https://192.0.2.1/reset" }, response.Unchanged,
			"want a path below it", nil},
		"above": {func(e *powertest.Emulator, _ *BMC) { e.At = powertest.System + "/../2/reset" }, response.Unchanged,
			"want a path below it", nil},
		"refused":       {func(e *powertest.Emulator, _ *BMC) { e.Status = 403 }, response.Unchanged, "403", nil},
		"conflict":      {func(e *powertest.Emulator, _ *BMC) { e.Status = 409 }, response.Unchanged, "409", nil},
		"303, and done": {func(e *powertest.Emulator, _ *BMC) { e.Late = 303 }, response.NotKnown, "303", []string{"ForceRestart"}},
		"307":           {func(e *powertest.Emulator, _ *BMC) { e.Status = 307 }, response.NotKnown, "307", nil},
		"400":           {func(e *powertest.Emulator, _ *BMC) { e.Status = 400 }, response.Unchanged, "400", nil},
		"499":           {func(e *powertest.Emulator, _ *BMC) { e.Status = 499 }, response.Unchanged, "499", nil},
		"slow":          {func(e *powertest.Emulator, _ *BMC) { e.Status = 408 }, response.NotKnown, "408", nil},
		"500":           {func(e *powertest.Emulator, _ *BMC) { e.Status = 500 }, response.NotKnown, "500", nil},
		"500, and done": {func(e *powertest.Emulator, _ *BMC) { e.Late = 500 }, response.NotKnown, "500", []string{"ForceRestart"}},
		"503":           {func(e *powertest.Emulator, _ *BMC) { e.Status = 503 }, response.NotKnown, "503", nil},
		"no answer":     {func(e *powertest.Emulator, _ *BMC) { e.Drop = true }, response.NotKnown, "EOF", []string{"ForceRestart"}},
		"task": {func(e *powertest.Emulator, _ *BMC) { e.Task = []string{"New", "Running", "Completed"} }, response.Succeeded,
			"is done", []string{"ForceRestart"}},
		"task's answer": {func(e *powertest.Emulator, _ *BMC) { e.Task, e.OnlyCode = []string{"New", "Completed"}, true },
			response.Succeeded, "", []string{"ForceRestart"}},
		"task fails": {func(e *powertest.Emulator, _ *BMC) { e.Task = []string{"New", "Exception"} }, response.NotKnown,
			"Exception: power supply does not answer", []string{"ForceRestart"}},
		"task ended": {func(e *powertest.Emulator, _ *BMC) { e.Task = []string{"New", "Cancelled"} }, response.NotKnown,
			"ended as Cancelled", []string{"ForceRestart"}},
		"task's 500": {func(e *powertest.Emulator, _ *BMC) { e.Task, e.OnlyCode = []string{"New", "Exception"}, true },
			response.NotKnown, "500", []string{"ForceRestart"}},
		"task lasts": {func(e *powertest.Emulator, _ *BMC) { e.Task = []string{"New", "Running"} }, response.NotKnown, "deadline",
			[]string{"ForceRestart"}},
		"task elsewhere": {func(e *powertest.Emulator, _ *BMC) { e.Task, e.Monitor = []string{"New"}, "https://192.0.2.1/task" },
			response.NotKnown, "at another host",
			[]string{"ForceRestart"}},
		"task by URL": {func(e *powertest.Emulator, _ *BMC) {
			e.Task, e.Monitor = []string{"New", "Completed"}, e.URL+powertest.TaskMonitor
		}, response.Succeeded, "", []string{"ForceRestart"}},
		"unknown CA": {func(_ *powertest.Emulator, b *BMC) { b.CAFile = "" }, response.Unchanged, "certificate", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := powertest.New(t)
			b := bmcAt(e)
			tc.change(e, &b)
			ctx := deadline.When(t, func() bool { return name == "task lasts" && len(e.CarriedOut()) > 0 })
			wantPower(t, onePower(t, b).Do(ctx, powerJob(methodRedfish)), tc.outcome, tc.detail)
			if got := e.CarriedOut(); !slices.Equal(got, tc.resets) {
				t.Errorf("carried out: %v, want %v", got, tc.resets)
			}
		})
	}
}

// TestHangingBMCIsNotKnown: a BMC takes the reset and does not answer. The outcome at the deadline is NotKnown, and no second reset
// starts meanwhile.
func TestHangingBMCIsNotKnown(t *testing.T) {
	e := powertest.New(t)
	e.Hang = make(chan struct{})
	x := onePower(t, bmcAt(e))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan executor.Result, 1)
	go func() { done <- x.Do(ctx, powerJob(methodRedfish)) }()
	for deadline := time.Now().Add(time.Minute); len(e.CarriedOut()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has not come")
		}
	}
	wantPower(t, x.Do(t.Context(), powerJob(methodRedfish)), response.Unchanged, "another reset")
	cancel()
	wantPower(t, <-done, response.NotKnown, "canceled")
	close(e.Hang)
	if got := e.CarriedOut(); len(got) != 1 {
		t.Errorf("carried out: %v", got)
	}
}

// TestPasswordIsNotSentAfterRedirect: the password is not sent to a server that the BMC redirects to.
func TestPasswordIsNotSentAfterRedirect(t *testing.T) {
	var told bool
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		told = told ||
			r.Header.Get("Authorization") != ""
	}))
	defer other.Close()
	e := powertest.New(t)
	e.Redirect = other.URL + powertest.System
	wantPower(t, onePower(t, bmcAt(e)).Do(t.Context(), powerJob(methodRedfish)), response.Unchanged, "307")
	if told || len(e.CarriedOut()) != 0 {
		t.Errorf("told: %t, carried out %v", told, e.CarriedOut())
	}
}

// TestUnreachableExecutorIsUnchanged: a request that was never sent has changed nothing.
func TestUnreachableExecutorIsUnchanged(t *testing.T) {
	b := bmcAt(powertest.New(t))
	b.Address = "https://" + freeport.Addr(t).String()
	wantPower(t, onePower(t, b).Do(t.Context(), powerJob(methodRedfish)), response.Unchanged, "refused")
}

// TestUnconfiguredResetIsRefused: a reset that is not requested exactly as configured is not made.
func TestUnconfiguredResetIsRefused(t *testing.T) {
	e := powertest.New(t)
	x := onePower(t, bmcAt(e))
	for name, tc := range map[string]struct {
		change  func(j *executor.Job)
		outcome response.Outcome
		detail  string
	}{
		"undo":    {func(j *executor.Job) { j.Undo = true }, response.Unchanged, "put back"},
		"recheck": {func(j *executor.Job) { j.Recheck = true }, response.NotKnown, "boot epoch"},
		"node":    {func(j *executor.Job) { j.Target.Node = "n2" }, response.Unchanged, "has no BMC for it"},
		"group":   {func(j *executor.Job) { j.Target = response.Target{Group: "row/Y=1"} }, response.Unchanged, "want a node"},
		"method":  {func(j *executor.Job) { j.Parameters["method"] = "ipmi" }, response.Unchanged, "method: given"},
	} {
		j := powerJob(methodRedfish)
		tc.change(&j)
		r := x.Do(t.Context(), j)
		if r.Outcome != tc.outcome || !strings.Contains(r.Detail, tc.detail) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if err := os.Chmod(filepath.Join(e.Dir, "password"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantPower(t, x.Do(t.Context(), powerJob(methodRedfish)), response.Unchanged, "only its owner")
	if got := e.CarriedOut(); len(got) != 0 {
		t.Errorf("carried out: %v", got)
	}
}

func TestPowerValidationNamesField(t *testing.T) {
	good := func() (BMC, BMC) {
		return BMC{Method: "redfish", Address: "https://10.0.0.1", System: "/redfish/v1/Systems/1", Username: "root", PasswordFile: "/etc/p"},
			BMC{Method: "ipmi", Address: "10.0.0.2:623", Username: "root", PasswordFile: "/etc/p"}
	}
	a, b := good()
	if err := (PowerConfig{Enabled: true, Nodes: map[fault.NodeID]BMC{"a": a, "b": b}}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (PowerConfig{}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (PowerConfig{Enabled: true}).Validate(); err == nil {
		t.Error("enabled for nobody")
	}
	for field, change := range map[string]func(a, b *BMC){
		"nodes.a.method":       func(a, _ *BMC) { a.Method = "" },
		"nodes.a.address":      func(a, _ *BMC) { a.Address = "http://10.0.0.1" },
		"nodes.a.system":       func(a, _ *BMC) { a.System = "/Systems/1" },
		"nodes.a.reset":        func(a, _ *BMC) { a.Reset = "ForceOff" },
		"nodes.a.username":     func(a, _ *BMC) { a.Username = "" },
		"nodes.a.passwordFile": func(a, _ *BMC) { a.PasswordFile = "p" },
		"nodes.a.caFile":       func(a, _ *BMC) { a.CAFile = "ca" },
		"nodes.b.address":      func(_, b *BMC) { b.Address = "bmc:623" },
		"nodes.b.system":       func(_, b *BMC) { b.System = "/redfish/v1/Systems/1" },
		"nodes.b.reset":        func(_, b *BMC) { b.Reset = "ForceRestart" },
		"nodes.b.username":     func(_, b *BMC) { b.Username = strings.Repeat("u", 17) },
		"the same place":       func(a, b *BMC) { *b = *a; b.Address += "/" },
	} {
		a, b := good()
		change(&a, &b)
		if err := (PowerConfig{Enabled: true, Nodes: map[fault.NodeID]BMC{"a": a, "b": b}}).Validate(); err == nil ||
			!strings.Contains(err.Error(), field) {
			t.Errorf("%v: want %s", err, field)
		}
	}
	for addresses, same := range map[[2]string]bool{
		{"https://bmc1", "https://BMC1."}: true, {"https://bmc1/", "https://bmc1:443"}: true, {"https://bmc1", "https://bmc1:0443/"}: true,
		{"https://[FD00::1]", "https://[fd00:0::1]:443"}: true, {"https://[::ffff:10.0.0.1]", "https://10.0.0.1"}: true,
		{"https://bmc1", "https://bmc1:8443"}: false, {"https://bmc1", "https://bmc2"}: false,
		{"https://10.0.0.1", "10.0.0.1:623"}: true, {"https://10.0.0.1:8443", "10.0.0.1:623"}: true, {"https://[fd00::1]",
			"[FD00:0::1]:623"}: true,
		{"https://10.0.0.1", "10.0.0.2:623"}: false, {"https://bmc1", "10.0.0.1:623"}: false,
		{"10.0.0.1:623", "[::ffff:10.0.0.1]:623"}: true, {"10.0.0.1:623", "10.0.0.1:624"}: false,
	} {
		nodes := map[fault.NodeID]BMC{}
		for i, address := range addresses {
			b, ipmi := good()
			if !strings.HasPrefix(address, "https:") {
				b = ipmi
			}
			b.Address = address
			nodes[fault.NodeID("ab"[i:i+1])] = b
		}
		for range 2 { // in both orders
			nodes["a"], nodes["b"] = nodes["b"], nodes["a"]
			err := PowerConfig{Enabled: true, Nodes: nodes}.Validate()
			if same && (err == nil || !strings.Contains(err.Error(), "a and b are reset at the same place")) || !same && err != nil {
				t.Errorf("%v: %v, same machine: %t", addresses, err, same)
			}
		}
	}
	a, _ = good()
	b = a
	b.System = "/redfish/v1/Systems/2"
	if err := (PowerConfig{Enabled: true, Nodes: map[fault.NodeID]BMC{"a": a, "b": b}}).Validate(); err != nil {
		t.Errorf("two systems of one BMC: %v", err)
	}
	b.System = "/redfish/v1//Systems/1/"
	if err := (PowerConfig{Enabled: true, Nodes: map[fault.NodeID]BMC{"a": a, "b": b}}).Validate(); err == nil {
		t.Error("one system, written in two ways")
	}
	if _, err := newPower(PowerConfig{Enabled: true, Nodes: map[fault.NodeID]BMC{"a": {Method: "redfish", Address: "https://10.0.0.1",
		System: "/redfish/v1/Systems/1", Username: "root",
		PasswordFile: "/nowhere/password", CAFile: "/nowhere/ca"}}}); err == nil || !strings.Contains(err.Error(), "password") ||
		!strings.Contains(err.Error(), "caFile") {
		t.Errorf("files that are not there: %v", err)
	}
}

// TestPasswordIsPrivate: only a password's owner may read it, except for the process' group in files of root, as
// Kubernetes sets up Secrets.
func TestPasswordIsPrivate(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "files of other groups want root")
	}
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		uid, gid int
		mode     os.FileMode
		want     bool
	}{
		{0, 0, 0o600, true},
		{0, 0, 0o400, true},
		{0, os.Getegid(), 0o440, true},
		{0, os.Getegid() + 1, 0o440, false},
		{990, os.Getegid(), 0o440, false}, // only root may choose a group for a file of root
		{0, os.Getegid(), 0o460, false},
		{0, os.Getegid(), 0o444, false},
	} {
		if err := errors.Join(os.Chmod(file, tc.mode), os.Chown(file, tc.uid, tc.gid)); err != nil {
			t.Fatal(err)
		}
		if got, err := (BMC{PasswordFile: file}).password(); (err == nil) != tc.want || err == nil && got != "secret" {
			t.Errorf("%d:%d %o: %q, %v: want it taken: %t", tc.uid, tc.gid, tc.mode, got, err, tc.want)
		}
	}
}
