package process_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
)

// witnessing returns a process that reads the emulators as controllers of n0, n1 and so on.
func witnessing(t *testing.T, all ...*powertest.Emulator) *processtest.Fixture {
	t.Helper()
	f := processtest.New(t)
	c := &f.Config.Controllers
	c.Nodes, c.Timeout = map[fault.NodeID]process.Controller{}, config.Duration(10*time.Second)
	c.Template = process.Controller{Kind: "redfish", Username: "root", System: powertest.System}
	for i, e := range all {
		c.Nodes[fault.NodeID(fmt.Sprint("n", i))] = process.Controller{Address: e.URL, PasswordFile: filepath.Join(e.Dir, "password"),
			CAFile: filepath.Join(e.Dir, "ca.pem")}
	}
	return f
}

// read calls until a reading fits.
func read(t *testing.T, x *executor.Remote, suspects []fault.NodeID, fits func(controller.Reading) bool) controller.Reading {
	t.Helper()
	var last controller.Batch
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		b, err := x.Controllers(t.Context(), suspects, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range b.Readings {
			if fits(r) {
				return r
			}
		}
		last = b
	}
	t.Fatalf("no such reading in %+v", last)
	return controller.Reading{}
}

// TestProcessServesReadingsOfControllers: one is off, one hangs, one has another certificate than the pinned one. Each is a reading of its
// own node, and the call waits for none.
func TestProcessServesReadingsOfControllers(t *testing.T) {
	t.Parallel()
	off, hangs, stranger := powertest.New(t), powertest.New(t), powertest.New(t)
	off.Set("Off", "Critical")
	release := make(chan struct{})
	hangs.Instead(powertest.System, hang(release))
	t.Cleanup(func() { close(release) })
	f := witnessing(t, off, hangs, stranger)
	n2 := f.Config.Controllers.Nodes["n2"]
	n2.CAFile, n2.Pin = "", strings.Repeat("ab", 32)
	f.Config.Controllers.Nodes["n2"] = n2
	f.Config.HTTP = freeport.Addr(t).String()
	stop := f.Start(t)
	x := f.Supervisor(t, f.Config.Listen)
	suspects := []fault.NodeID{"n0", "n1", "n2", "stranger"}
	r := read(t, x, suspects, func(r controller.Reading) bool { return r.Node == "n0" })
	if r.Finding != controller.Off || r.Health != controller.Critical || r.Last != controller.Off || time.Since(r.At) > time.Minute {
		t.Errorf("%+v: want off and critical", r)
	}
	if r := read(t, x, suspects, func(r controller.Reading) bool { return r.Node == "n2" }); r.Finding != controller.Wrong ||
		!strings.Contains(r.Detail, "pinned") || r.Last != 0 {
		t.Errorf("%+v: want an error that names the pin", r)
	}
	if r := read(t, x, suspects, func(r controller.Reading) bool { return r.Node == "n1" }); r.Finding != controller.Silent {
		t.Errorf("%+v: want silence", r)
	}
	_, text := get(t, "http://"+f.Config.HTTP+"/metrics")
	for _, line := range []string{`finding="powered_off"} 1`, `finding="silent"} 1`, `finding="error"} 1`, `finding="none"} 0`} {
		if !strings.Contains(text, "lofamo_executor_controllers{"+line) {
			t.Errorf("metrics have no %s", line)
		}
	}
	b, err := x.Controllers(t.Context(), nil, "", 0)
	if err != nil || b.Configured != 3 || len(b.Readings) != 3 || b.Run == "" {
		t.Fatalf("%+v, %v", b, err)
	}
	last := b.Readings[2].Version // another look may have ended since
	again, err := x.Controllers(t.Context(), nil, b.Run, last)
	if err != nil || slices.ContainsFunc(again.Readings, func(r controller.Reading) bool { return r.Version <= last }) {
		t.Errorf("%+v, %v: want no reading that was read before", again, err)
	}
	if off.Others()+stranger.Others() != 0 {
		t.Error("a witness sent more than GET")
	}
	stop()
	f.Start(t)
	x = f.Supervisor(t, f.Config.Listen)
	if r := read(t, x, suspects, func(r controller.Reading) bool { return r.Node == "n0" }); r.Finding != controller.Off {
		t.Errorf("%+v", r)
	}
	if c, err := x.Controllers(t.Context(), nil, b.Run, 1<<40); err != nil || c.Run == b.Run || len(c.Readings) == 0 {
		t.Errorf("after a restart: %+v, %v: want another run, and its readings in spite of the version", c, err)
	}
}

// TestControllersCallRefusesBadInput: another cluster, and too many suspects. A process without controllers has none.
func TestControllersCallRefusesBadInput(t *testing.T) {
	t.Parallel()
	f := processtest.New(t)
	f.Start(t)
	x := f.Supervisor(t, f.Config.Listen)
	if b, err := x.Controllers(t.Context(), []fault.NodeID{"n1"}, "", 0); err != nil || b.Configured != 0 || len(b.Readings) != 0 {
		t.Errorf("%+v, %v: want none", b, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Controllers(ctx, nil, "", 0); status.Code(err) != codes.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	certificate := f.Certificate(t, pki.RoleSupervisor)
	conf, err := pki.ClientTLS(certificate.Cert, certificate.Key, certificate.CA, pki.AllowRoles(pki.RoleExecutor))
	if err != nil {
		t.Fatal(err)
	}
	conf.ServerName = pki.ExecutorName(processtest.Cluster)
	conn, err := grpc.NewClient("passthrough:///"+f.Config.Listen, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw := lofamov1.NewExecutorServiceClient(conn)
	for name, tc := range map[string]struct {
		cluster  string
		suspects int
		want     codes.Code
	}{
		"another cluster":        {"other", 0, codes.InvalidArgument},
		"no cluster":             {"", 0, codes.InvalidArgument},
		"too many suspects":      {processtest.Cluster, executor.MaxSuspects + 1, codes.InvalidArgument},
		"the most that may come": {processtest.Cluster, executor.MaxSuspects, codes.OK},
	} {
		req := &lofamov1.ExecutorControllersRequest{Cluster: tc.cluster, Suspects: slices.Repeat([]string{"n1"}, tc.suspects)}
		if _, err := raw.Controllers(t.Context(), req); status.Code(err) != tc.want {
			t.Errorf("%s: %v: want %s", name, err, tc.want)
		}
	}
}

// TestControllersConfigurationNamesBadFields: every bad field at once.
func TestControllersConfigurationNamesBadFields(t *testing.T) {
	t.Parallel()
	good := process.Controller{Kind: "redfish", Address: "https://bmc1", System: "/redfish/v1/Systems/1", Username: "reader",
		PasswordFile: "/p"}
	if err := (process.ControllersConfig{Nodes: map[fault.NodeID]process.Controller{"n1": good}}).Validate(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if err := (process.ControllersConfig{Template: process.Controller{Kind: "ipmi", Address: "{node}-bmc:623",
		Username: "reader", PasswordFile: "/p",
		CipherSuite: 17}, Nodes: map[fault.NodeID]process.Controller{"n1": {}, "n2": {}}}).Validate(); err != nil {
		t.Errorf("a good template: %v", err)
	}
	for want, change := range map[string]func(*process.Controller){
		"nodes.n1.kind":                                    func(c *process.Controller) { c.Kind = "snmp" },
		`nodes.n1.address: given "http://bmc1"`:            func(c *process.Controller) { c.Address = "http://bmc1" },
		`nodes.n1.address: given "https://u:p@bmc1"`:       func(c *process.Controller) { c.Address = "https://u:p@bmc1" },
		`nodes.n1.system: given "/redfish/v1/../x"`:        func(c *process.Controller) { c.System = "/redfish/v1/../x" },
		`nodes.n1.username: given "a:b"`:                   func(c *process.Controller) { c.Username = "a:b" },
		`nodes.n1.passwordFile: given "p"`:                 func(c *process.Controller) { c.PasswordFile = "p" },
		`nodes.n1.pin: given "12": want 64`:                func(c *process.Controller) { c.Pin = "12" },
		"nodes.n1.caFile":                                  func(c *process.Controller) { c.CAFile, c.Pin = "/ca", strings.Repeat("ab", 32) },
		`nodes.n1.cipherSuite: given "17": want nothing`:   func(c *process.Controller) { c.CipherSuite = 17 },
		`nodes.n1.cipherSuite: given "1": want 3, 17`:      func(c *process.Controller) { *c = ipmi(); c.CipherSuite = 1 },
		`nodes.n1.address: given "bmc1": want "host:port"`: func(c *process.Controller) { *c = ipmi(); c.Address = "bmc1" },
		`nodes.n1.pin`:                                     func(c *process.Controller) { *c = ipmi(); c.Pin = "ab" },
		`at most 16 bytes with ipmi`:                       func(c *process.Controller) { *c = ipmi(); c.Username = strings.Repeat("a", 17) },
	} {
		c := good
		change(&c)
		err := process.ControllersConfig{Nodes: map[fault.NodeID]process.Controller{"n1": c}}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	err := process.ControllersConfig{Every: -1, AtOnce: 65, Nodes: map[fault.NodeID]process.Controller{"n1": good, "n2": good}}.Validate()
	for _, want := range []string{"every: given", "atOnce: given 65", "n1 and n2 have the same controller"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}

func ipmi() process.Controller {
	return process.Controller{Kind: "ipmi", Address: "bmc1:623", Username: "reader", PasswordFile: "/p"}
}

// hang answers when release is closed or the client leaves.
func hang(release chan struct{}) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
}
