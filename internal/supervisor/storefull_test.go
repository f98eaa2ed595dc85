package supervisor_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/checksum"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// etcdClient connects to the embedded etcd of a replica as another replica would.
func etcdClient(t *testing.T, cfg config.Supervisor) *clientv3.Client {
	t.Helper()
	conf, err := pki.ClientTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.Etcd.ClientURL}, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	checksum.Client(c)
	return c
}

// TestFullStoreKeepsReportsWithSenders (row 12 of the fault catalogue): the replica raises an alarm, reports stay with
// their senders, halves stay live, and no node is found dead meanwhile. Once there is space again, the leader commits
// all reports.
func TestFullStoreKeepsReportsWithSenders(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Preset: config.PresetRelaxed})
	cfg := c.Configs[0]
	cfg.Etcd.QuotaBytes = 16 << 20
	start(t, cfg)
	c.AwaitLeader(t)
	client, etcd := c.Client(t, cfg.GRPC), etcdClient(t, cfg)
	health := func(service string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		h := healthpb.NewHealthClient(c.Conn(t, pki.RoleViewer, cfg.GRPC))
		supervisortest.Eventually(t, fmt.Sprintf("health of %q to be %s", service, want), func() bool {
			resp, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return err == nil && resp.GetStatus() == want
		})
	}
	alarm := func(want bool) {
		t.Helper()
		supervisortest.Eventually(t, fmt.Sprint("the alarm to be ", want), func() bool {
			list, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
			return err == nil && slices.Contains(list.GetSupervisors()[0].GetAlarms(), "store full") == want
		})
	}
	health("store", healthpb.HealthCheckResponse_SERVING)
	alarm(false)
	full := false
	for i := 0; !full && i < 64; i++ {
		_, err := etcd.Put(t.Context(), fmt.Sprint("fill/", i), string(bytes.Repeat([]byte{'x'}, 1<<20)))
		full = errors.Is(err, rpctypes.ErrNoSpace)
		if err != nil && !full {
			t.Logf("put %d: %v", i, err) // a slow disk may delay the write beyond its deadline
		}
	}
	if !full {
		t.Fatal("the store cannot be filled")
	}
	alarm(true)
	health("store", healthpb.HealthCheckResponse_NOT_SERVING)
	for _, service := range []string{"", "lofamo.v1.FaultSupervisor", "leader"} {
		health(service, healthpb.HealthCheckResponse_SERVING)
	}
	metricsSay(t, cfg, `lofamo_alarm{alarm="store full"} 1`)

	a := c.Agents["n0-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Send(t, cfg.Report, b)
	a.Await(t, id, lofamov1.Ack_RECEIVED)
	digest, b := a.Report(t, fault.HalfHost, true)
	a.Send(t, cfg.Report, b)
	a.Await(t, digest, lofamov1.Ack_RECEIVED)
	list := supervisortest.Fresh(t, client.ListNodes, &lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_FAILED}})
	if len(list.GetNodes()) > 0 {
		t.Errorf("while the store is full: %v", list)
	}
	if a.Count(id, lofamov1.Ack_COMMITTED) > 0 {
		t.Error("committed to a store that is full")
	}

	free(t, etcd, cfg.Etcd.ClientURL)
	a.Await(t, id, lofamov1.Ack_COMMITTED) // without being sent again
	alarm(false)
	health("store", healthpb.HealthCheckResponse_SERVING)
}

// free makes space as the manual describes: delete, compact, defragment, disarm the alarm.
func free(t *testing.T, etcd *clientv3.Client, endpoint string) {
	t.Helper()
	resp, err := etcd.Delete(t.Context(), "fill/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Defragment(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
}
