package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
)

const kubernetesName = "Kubernetes"

// The kubelet's values: its lease lasts 40 s, and the kubelet renews it four times as often.
const (
	leaseSeconds = 40
	leaseRenewal = leaseSeconds * time.Second / 4
)

// kube is a control plane: etcd, API server, and the controller manager's node lifecycle controller. A member is a
// process that renews a Lease as a kubelet does, and has a watch on all nodes.
type kube struct {
	cell   *cell
	server *kubetest.Server
	pids   []int
}

func (k *kube) overlap() bool { return true }
func (k *kube) note() string  { return "" }

func (k *kube) start(ctx context.Context) (err error) {
	if k.server, err = kubetest.Start(k.cell.dir); err != nil {
		return err
	}
	if err := k.server.StartNodeLifecycle(k.cell.dir); err != nil {
		return err
	}
	k.pids = make([]int, k.cell.members)
	for i := range k.pids {
		if err := k.restart(ctx, i); err != nil {
			return err
		}
		c, err := k.server.Client(k.server.Addr, k.server.Token())
		if err != nil {
			return err
		}
		go k.watch(ctx, i, c)
	}
	return nil
}

func (k *kube) session(member int) int { return k.pids[member] }

func (k *kube) restart(_ context.Context, member int) error {
	cmd, err := session(k.cell.log, k.cell.log, k.cell.self, "kubelet", k.server.Addr, k.server.Token(), k.server.CA(), nameOf(member))
	if err != nil {
		return err
	}
	k.pids[member] = cmd.Process.Pid
	reap(cmd)
	return nil
}

// watch follows the Ready condition of all nodes; a new watch begins with the present state.
func (k *kube) watch(ctx context.Context, observer int, c *kubetest.Client) {
	for ctx.Err() == nil {
		err := c.Watch(ctx, "/api/v1/nodes?watch=true", func(_ string, object json.RawMessage) bool {
			at := cluster.Monotonic()
			var n corev1.Node
			if json.Unmarshal(object, &n) != nil {
				return false
			}
			m, err := memberOf(n.Name)
			ready := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
			if err == nil && ready >= 0 {
				k.cell.board.saw(observer, m, n.Status.Conditions[ready].Status == corev1.ConditionTrue, at)
			}
			return true
		})
		if err != nil {
			_, _ = fmt.Fprintf(k.cell.log, "watch of member %d: %v\n", observer, err)
		}
		_ = pause(ctx, 100*time.Millisecond)
	}
}

// beKubelet registers a node, declares it ready, and renews its Lease until it is killed.
func beKubelet(addr, token, ca, name string) error {
	c, err := kubetest.NewClient(addr, token, ca)
	if err != nil {
		return err
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	steps := []struct{ method, path, media, body string }{
		{http.MethodPost, "/api/v1/nodes", "", fmt.Sprintf(`{"metadata":{"name":%q}}`, name)},
		{http.MethodPost, leases, "", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"holderIdentity":%q,"leaseDurationSeconds":%d}}`,
			name, name, leaseSeconds)},
		{http.MethodPatch, leases + "/" + name, kubetest.MergePatch, renewal(time.Now())},
		{http.MethodPatch, "/api/v1/nodes/" + name + "/status", kubetest.MergePatch, readiness(time.Now())},
	}
	for _, s := range steps {
		for {
			_, err := c.Do(s.method, s.path, s.media, []byte(s.body))
			var refused *kubetest.StatusError
			if err == nil || errors.As(err, &refused) && refused.Code == http.StatusConflict {
				break // a node that begins again exists already
			}
			fmt.Fprintln(os.Stderr, name, err)
			time.Sleep(200 * time.Millisecond)
		}
	}
	for {
		// As the kubelet: a jitter of 4 %.
		time.Sleep(leaseRenewal + time.Duration(rand.Int64N(int64(leaseRenewal/25))))
		if _, err := c.Do(http.MethodPatch, leases+"/"+name, kubetest.MergePatch, []byte(renewal(time.Now()))); err != nil {
			fmt.Fprintln(os.Stderr, name, err)
		}
	}
}

func renewal(now time.Time) string {
	return fmt.Sprintf(`{"spec":{"renewTime":%q}}`, now.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
}

func readiness(now time.Time) string {
	at := now.UTC().Format(time.RFC3339)
	return fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"emulated",`+
		`"lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`, at, at)
}
