package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const joinCluster = "test"

// joinWorld has the authority of a cluster and a node that enrols.
type joinWorld struct {
	dir string
	ca  *pki.CA
	j   *joiner

	requests atomic.Int64 // that reached a supervisor
}

func newJoinWorld(t *testing.T, supervisors ...string) *joinWorld {
	t.Helper()
	ca, err := pki.NewCA(joinCluster)
	if err != nil {
		t.Fatal(err)
	}
	w := &joinWorld{dir: t.TempDir(), ca: ca}
	cfg := config.DefaultAgent()
	cfg.Node, cfg.StateDir = "n1", w.path("state")
	cfg.Join = config.JoinConfig{Supervisors: supervisors, CA: w.path("ca.pem"), TokenFile: w.path("token"), Address: "192.0.2.7"}
	w.j = &joiner{cfg: cfg, dir: filepath.Join(cfg.StateDir, joinDir), log: slog.New(slog.DiscardHandler)}
	if err := errors.Join(os.MkdirAll(w.j.dir, 0o700), os.WriteFile(w.path("ca.pem"), ca.CertPEM(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *joinWorld) path(name string) string { return filepath.Join(w.dir, name) }

// enrolled stores an enrolment of an hour ago, for an address.
func (w *joinWorld) enrolled(t *testing.T, address string) {
	t.Helper()
	b, err := json.Marshal(joinedNode{Cluster: joinCluster, Node: "n1", Preset: config.PresetRelaxed, Address: netip.MustParseAddr(address),
		Supervisors: []config.SupervisorAddr{{ID: "s1", Report: "192.0.2.9:7000"}}, At: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(w.j.file("ca.pem"), w.ca.CertPEM(), 0o600), durable.Whole(w.j.file(joinAnswer), b))
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		id := pki.NodeIdentity(joinCluster, "n1", h)
		err = errors.Join(err, w.ca.IssueTo(w.j.file(h.String()+".pem"), w.j.file(h.String()+".key"), id, nil, nil))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refusing is a supervisor that answers every request with the same error.
type refusing struct {
	lofamov1.UnimplementedEnrolmentServer
	err      error
	requests *atomic.Int64
}

func (r refusing) Enrol(context.Context, *lofamov1.EnrolRequest) (*lofamov1.EnrolResponse, error) {
	r.requests.Add(1)
	return nil, r.err
}

// serve serves the enrolment address of a supervisor that refuses all nodes.
func (w *joinWorld) serve(t *testing.T, at string, err error) {
	t.Helper()
	w.serves(t, at, refusing{err: err, requests: &w.requests})
}

// serves serves the enrolment address of a supervisor.
func (w *joinWorld) serves(t *testing.T, at string, supervisor lofamov1.EnrolmentServer) {
	t.Helper()
	cert, key := w.path("s1.pem"), w.path("s1.key")
	if err := w.ca.IssueTo(cert, key, pki.SupervisorIdentity(joinCluster, "s1"), nil, nil); err != nil {
		t.Fatal(err)
	}
	conf, bad := pki.EnrolServerTLS(cert, key, w.path("ca.pem"))
	if bad != nil {
		t.Fatal(bad)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)))
	lofamov1.RegisterEnrolmentServer(srv, supervisor)
	ln := listenAt(t, at)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
}

// listenAt listens at an address. Without a server, connections get no answer.
func listenAt(t *testing.T, at string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// TestStoredEnrolmentStartsUnlessNodeWasRemoved: a supervisor that cannot answer now does not keep a healthy node from its work.
func TestStoredEnrolmentStartsUnlessNodeWasRemoved(t *testing.T) {
	t.Parallel()
	for code, starts := range map[codes.Code]bool{codes.Unavailable: true, codes.FailedPrecondition: true, codes.Unauthenticated: false} {
		at := freeport.Addr(t).String()
		w := newJoinWorld(t, at)
		w.enrolled(t, "192.0.2.7")
		w.serve(t, at, status.Error(code, "for the test"))
		joined, answered, err := w.j.ensure(t.Context())
		if (err == nil) != starts || answered || starts && joined.Address.String() != "192.0.2.7" {
			t.Errorf("%s: %+v, answered %v, %v: want a start %v", code, joined, answered, err, starts)
		}
	}
}

// TestRestartTakesOwnSettingsOfEnrolledNode: a person adds a check to the file that the daemon was started with, and asks for a restart.
// The file that the halves read has the check, though no supervisor answers. A bad file and a change of ports change nothing.
func TestRestartTakesOwnSettingsOfEnrolledNode(t *testing.T) {
	t.Parallel()
	at := freeport.Addr(t).String()
	w := newJoinWorld(t, at)
	w.enrolled(t, "192.0.2.7")
	w.serve(t, at, status.Error(codes.Unavailable, "for the test"))
	_, file, later, err := Join(t.Context(), w.j.cfg, w.j.log)
	if err != nil {
		t.Fatal(err)
	}
	given := w.j.cfg
	later.File = "/etc/lofamo/agent.yaml"
	later.Given = func() (config.Agent, error) { return given, nil }
	check := sensor.PeripheralConfig{Kind: "script", Command: []string{"/usr/libexec/lofamo/check-filesystem", "/scratch"}}
	given.Sensors.Peripherals[0] = check
	if err := later.Own(t.Context(), "/etc/lofamo/agent.yaml"); err != nil {
		t.Fatal(err)
	}
	same := func(when string) {
		t.Helper()
		got, err := config.ReadAgent(file, nil)
		if err != nil || got.Cluster != joinCluster ||
			!slices.Equal(got.Sensors.Peripherals[0].Command, check.Command) {
			t.Errorf("%s: %v, peripherals %+v: want the check", when, err, got.Sensors.Peripherals)
		}
	}
	same("with a check")
	good := given
	given.Sensors.Peripherals[0] = sensor.PeripheralConfig{Kind: "script", Command: []string{"relative"}}
	if err := later.Own(t.Context(), "/etc/lofamo/agent.yaml"); err == nil || !strings.Contains(err.Error(), "sensors.peripherals[0]") {
		t.Errorf("a bad check: %v", err)
	}
	given = good
	given.Join.Ports.Links = 7123
	err = later.Own(t.Context(), "/etc/lofamo/agent.yaml")
	if err == nil || !strings.Contains(err.Error(), "systemctl restart lofamo-agent") {
		t.Errorf("other ports: %v", err)
	}
	if err := later.Own(t.Context(), "/root/agent.yaml"); err == nil || !strings.Contains(err.Error(), "reads /etc/lofamo/agent.yaml") {
		t.Errorf("a file that the daemon does not read: %v", err)
	}
	later.File = ""
	if err := later.Own(t.Context(), "/root/agent.yaml"); err == nil || !strings.Contains(err.Error(), "started without --config") {
		t.Errorf("a daemon without a file: %v", err)
	}
	same("after refusals")
}

// TestEnrolledNodeStartsWithoutToken: the token's file is gone, or no token is named at all. A node that never enrolled needs one.
func TestEnrolledNodeStartsWithoutToken(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *joinWorld){
		"token deleted":  func(w *joinWorld) { w.j.cfg.Join.CA = "" },
		"no token named": func(w *joinWorld) { w.j.cfg.Join.CA, w.j.cfg.Join.TokenFile = "", "" },
	} {
		at := freeport.Addr(t).String()
		w := newJoinWorld(t, at)
		change(w)
		if _, _, _, err := Join(t.Context(), w.j.cfg, w.j.log); err == nil || !strings.Contains(err.Error(), "token") {
			t.Errorf("%s, never enrolled: %v: want the missing token", name, err)
		}
		w.enrolled(t, "192.0.2.7")
		w.serve(t, at, status.Error(codes.Unavailable, "for the test"))
		got, _, _, err := Join(t.Context(), w.j.cfg, w.j.log)
		if err != nil || got.Node != "n1" || w.requests.Load() == 0 {
			t.Errorf("%s: node %q after %d requests, %v: want a start of n1", name, got.Node, w.requests.Load(), err)
		}
	}
}

// TestUnusableEnrolmentIsNamedBesideMissingToken: the token was deleted after the enrolment, as documented. The reason why the
// node needs it again stands in the error.
func TestUnusableEnrolmentIsNamedBesideMissingToken(t *testing.T) {
	t.Parallel()
	w := newJoinWorld(t, "192.0.2.9:7944")
	w.enrolled(t, "192.0.2.7")
	if err := os.WriteFile(w.j.file("host.pem"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := Join(t.Context(), w.j.cfg, w.j.log)
	if err == nil || !strings.Contains(err.Error(), "host.pem") || !strings.Contains(err.Error(), w.path("token")) {
		t.Errorf("%v: want the damaged certificate and the missing token", err)
	}
	fresh := newJoinWorld(t, "192.0.2.9:7944")
	if _, _, _, err := Join(t.Context(), fresh.j.cfg, fresh.j.log); err == nil || strings.Contains(err.Error(), "stored enrolment") {
		t.Errorf("a node that has never enrolled: %v: want the missing token alone", err)
	}
}

// TestMachineIsCheckedBeforeTheEnrolment: a node that could not start here sends no request, which would spend its token and take its name.
// The control is a node that could start.
func TestMachineIsCheckedBeforeTheEnrolment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, w *joinWorld)
		want   string // in the error; empty: the supervisor gets the request
	}{
		"machine that is good": {func(*testing.T, *joinWorld) {}, ""},
		"disk that is too small": {func(t *testing.T, w *joinWorld) { requirements.SmallDisk(t, w.j.cfg.StateDir, 64<<10) },
			"for a first start"},
		"state directory that others can write": {func(t *testing.T, w *joinWorld) {
			if err := os.Chmod(w.j.cfg.StateDir, 0o777); err != nil {
				t.Error(err)
			}
		}, "others may write"},
		"port of a link in use": {func(t *testing.T, w *joinWorld) {
			at := netip.AddrPortFrom(netip.MustParseAddr(w.j.cfg.Join.Address), uint16(w.j.cfg.Join.Ports.Filled().Links+2))
			c, err := net.ListenPacket("udp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}, "another program of this machine listens there"},
	} {
		t.Run(name, func(t *testing.T) {
			at := freeport.Addr(t).String()
			w := newJoinWorld(t, at)
			w.j.cfg.Join.Address = "127.0.0.53"
			w.j.cfg.Join.TokenFile, w.j.cfg.Join.ServiceAccountTokenFile = "", w.path("token")
			if err := os.WriteFile(w.path("token"), []byte("pod"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.serve(t, at, status.Error(codes.PermissionDenied, "for the test"))
			tc.change(t, w)
			// A port may become free: the node tries again, so this is one round.
			err := preflight(w.j.cfg)
			if err == nil {
				_, refused, failed := w.j.round(t.Context(), 0)
				err = errors.Join(refused, failed)
			} else if _, _, _, joining := Join(t.Context(), w.j.cfg, w.j.log); joining == nil || joining.Error() != err.Error() {
				t.Errorf("join: %v, want %v", joining, err)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || (w.requests.Load() == 0) != (tc.want != "") {
				t.Errorf("%d requests, %v: want an error with %q", w.requests.Load(), err, tc.want)
			}
		})
	}
}

// proving is a supervisor that knows no address of the node.
type proving struct {
	lofamov1.UnimplementedEnrolmentServer
	w *joinWorld
}

func (p proving) Enrol(_ context.Context, req *lofamov1.EnrolRequest) (*lofamov1.EnrolResponse, error) {
	proof := bytes.Repeat([]byte{7}, servicenet.AddressProofSize)
	switch {
	case len(req.GetListening()) == 0:
	case len(req.GetProofs()) == 1 && bytes.Equal(req.GetProofs()[0], proof):
		return &lofamov1.EnrolResponse{Cluster: joinCluster, Node: req.GetNode(), Ca: p.w.ca.CertPEM(), Preset: config.PresetRelaxed,
			Supervisors: []*lofamov1.EnrolmentSupervisor{{Id: "s1", Report: []string{"127.0.0.1:7000"}}}}, nil
	default:
		c, err := net.Dial("udp", req.GetService()[0])
		if err != nil {
			return nil, err
		}
		defer func() { _ = c.Close() }()
		stray := servicenet.AppendAddressChallenge(nil, make([]byte, servicenet.ListeningSize), make([]byte, servicenet.AddressProofSize))
		_, _ = c.Write(stray) // of somebody who does not know what the node listens for
		_, err = c.Write(servicenet.AppendAddressChallenge(nil, req.GetListening(), proof))
		if err != nil {
			return nil, err
		}
	}
	return &lofamov1.EnrolResponse{Prove: true}, nil
}

// TestNodeProvesAnotherAddressWithoutToken: a node whose machine has another address shows its certificate, and answers the
// supervisor's challenge at the new address.
func TestNodeProvesAnotherAddressWithoutToken(t *testing.T) {
	t.Parallel()
	at := freeport.Addr(t).String()
	w := newJoinWorld(t, at)
	w.enrolled(t, "192.0.2.7")
	w.j.cfg.Join.Address = "127.0.0.1"
	w.j.cfg.Join.Ports.Service = int(freeport.Addr(t).Port())
	w.serves(t, at, proving{w: w})
	joined, answered, err := w.j.ensure(t.Context())
	if err != nil || !answered || joined.Address.String() != "127.0.0.1" {
		t.Fatalf("%+v, answered %v, %v: want the new address", joined, answered, err)
	}
	if have, err := w.j.stored(); err != nil || have.Address != joined.Address {
		t.Errorf("stored: %+v, %v: want the new address", have, err)
	}
}

// TestRunningNodeFollowsItsAddress: the machine loses the address of the enrolment while the node runs.
func TestRunningNodeFollowsItsAddress(t *testing.T) {
	t.Parallel()
	at := freeport.Addr(t).String()
	w := newJoinWorld(t, at)
	w.enrolled(t, "192.0.2.7") // which no interface has
	w.j.cfg.Join.Address = ""
	w.j.cfg.Join.Ports.Service = int(freeport.Addr(t).Port())
	l := w.j.later(config.Joined{Address: netip.MustParseAddr("192.0.2.7"), Preset: config.PresetDefault}, true)
	if changed, err := l.readdress(t.Context()); changed || err == nil {
		t.Errorf("without a supervisor: changed %v, %v: want another try", changed, err)
	}
	w.serves(t, at, proving{w: w})
	if changed, err := l.readdress(t.Context()); !changed || err != nil {
		t.Fatalf("changed %v, %v: want another address", changed, err)
	}
	if changed, err := l.readdress(t.Context()); changed || err != nil {
		t.Errorf("again: changed %v, %v: want no change", changed, err)
	}
	cfg, err := config.LoadAgent(w.j.file(joinAgent), nil)
	if err != nil || !strings.HasPrefix(cfg.Service.Listen, "127.0.0.1:") || cfg.Preset != config.PresetDefault {
		t.Errorf("the halves get %s with preset %q, %v: want the new address and the preset of this daemon", cfg.Service.Listen, cfg.Preset, err)
	}
}

// TestAddressThatComesBackIsKept: DHCP takes a machine's address away for a while. The control is an address that stays away.
func TestAddressThatComesBackIsKept(t *testing.T) {
	t.Parallel()
	for _, within := range []time.Duration{lostRunning, lostAtStart} {
		for away, want := range map[time.Duration]bool{0: false, within - addressLook: false, 2 * within: true} {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got := lost(t.Context(), within, func() bool { return time.Since(began) >= away })
				if took := time.Since(began); got != want || took != min(away, within) {
					t.Errorf("absent for %s of %s: lost %v after %s, want %v", away, within, got, took, want)
				}
			})
		}
	}
	w := newJoinWorld(t, "192.0.2.9:7944")
	w.enrolled(t, "192.0.2.7") // which no interface has
	w.j.cfg.Join.Address = ""
	var log bytes.Buffer
	w.j.log = slog.New(slog.NewTextHandler(&log, nil))
	synctest.Test(t, func(t *testing.T) {
		l := w.j.later(config.Joined{Address: netip.MustParseAddr("192.0.2.7")}, true)
		ctx, cancel := context.WithTimeout(t.Context(), lostRunning)
		defer cancel()
		if err := l.Readdress(ctx); !errors.Is(err, context.DeadlineExceeded) || log.Len() > 0 {
			t.Errorf("%v, log %q: want no request for another address so soon", err, &log)
		}
	})
}

// TestStableAddressIsPreferredToTemporaryOne: a node with privacy extensions of IPv6 gets no address that its machine soon drops.
func TestStableAddressIsPreferredToTemporaryOne(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	netnstest.IP(t, "link add d0 type veth peer name d1")
	netnstest.Sysctl(t, "net/ipv6/conf/d0/use_tempaddr", 2)
	netnstest.Sysctl(t, "net/ipv6/conf/d0/accept_dad", 0)
	for _, cmd := range []string{"link set d0 up", "link set d1 up", "-6 addr add 2001:db8::1/64 dev d0 nodad mngtmpaddr"} {
		netnstest.IP(t, cmd)
	}
	w := newJoinWorld(t, "[2001:db8::9]:7944")
	w.j.cfg.Join.Address = ""
	if got, err := w.j.address(t.Context()); err != nil || got.String() != "2001:db8::1" {
		t.Errorf("%v, %v: want the stable address", got, err)
	}
}

// TestHalvesThatAnswerAtOtherAddressStopBeforeTheClaim: the running halves of a node with a second service interface answer the supervisors
// there. The next daemon claims the new address before it starts halves.
func TestHalvesThatAnswerAtOtherAddressStopBeforeTheClaim(t *testing.T) {
	t.Parallel()
	at := freeport.Addr(t).String()
	w := newJoinWorld(t, at)
	w.enrolled(t, "192.0.2.7") // which no interface has
	w.j.cfg.Join.Address = ""
	w.serve(t, at, status.Error(codes.AlreadyExists, "there is one, and it lives"))
	l := w.j.later(config.Joined{Address: netip.MustParseAddr("192.0.2.7")}, true)
	err := l.Run(t.Context(), func(ctx context.Context) error {
		changed, err := l.readdress(ctx)
		if changed || err == nil || ctx.Err() == nil {
			t.Errorf("changed %v, %v, the halves stop %v: want a refusal, and no halves", changed, err, ctx.Err() != nil)
		}
		return nil
	})
	if !errors.Is(err, ErrEnrolledAnew) {
		t.Errorf("the daemon ends with %v: want another daemon, which claims the address", err)
	}
}

// TestSilentSupervisorsLeaveTimeForOthers: in a round with an end, each supervisor gets a part of the time.
func TestSilentSupervisorsLeaveTimeForOthers(t *testing.T) {
	t.Parallel()
	silent, live := freeport.Addr(t).String(), freeport.Addr(t).String()
	listenAt(t, silent)
	w := newJoinWorld(t, silent, silent, live)
	w.enrolled(t, "192.0.2.7")
	if _, err := w.j.stored(); err != nil {
		t.Fatal(err)
	}
	w.serve(t, live, status.Error(codes.Unauthenticated, "the live one answers"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*joinTry) // a part of it for each
	defer cancel()
	_, refused, failed := w.j.round(ctx, 0)
	if refused == nil || !strings.Contains(refused.Error(), "the live one answers") || failed == nil {
		t.Errorf("refused: %v, failed: %v: want an answer of the live supervisor", refused, failed)
	}
}

// TestEnrolledNodeStartsOnFullDisk: it writes its configuration at each start, over the former one.
func TestEnrolledNodeStartsOnFullDisk(t *testing.T) {
	w := newJoinWorld(t, "192.0.2.9:7944")
	requirements.SmallDisk(t, w.j.dir, 64<<10)
	w.enrolled(t, "192.0.2.7")
	have, err := w.j.stored()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.j.complete(w.j.joined(have)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.j.file("full"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	have.Preset = config.PresetFast
	want, err := w.j.complete(w.j.joined(have))
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.LoadAgent(w.j.file(joinAgent), nil)
	if err != nil || got.Preset != config.PresetFast || got.Node != want.Node {
		t.Errorf("the file has preset %q of node %q, %v: want %q", got.Preset, got.Node, err, want.Preset)
	}
}
