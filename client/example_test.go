package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// exampleCluster serves two nodes at two replicas. dir holds the client's certificates.
func exampleCluster() (m *clienttest.Map, replicas []*clienttest.Server, dir string, stop func()) {
	dir, err := os.MkdirTemp("", "lofamo-example-")
	if err != nil {
		panic(err)
	}
	if err := clienttest.MakePKI(dir); err != nil {
		panic(err)
	}
	m = clienttest.NewMap()
	m.Nodes.Revision = 41
	m.Nodes.Nodes = []*lofamov1.Node{
		{Id: "n0-0-0", State: lofamov1.State_NORMAL},
		{Id: "n1-0-0", State: lofamov1.State_SICK, Cause: lofamov1.Cause_HOST},
	}
	m.Commit(41, &lofamov1.Event{Node: "n1-0-0", From: lofamov1.State_NORMAL, To: lofamov1.State_SICK})
	for range 2 {
		s, err := clienttest.StartIn(dir, "127.0.0.1:0", m)
		if err != nil {
			panic(err)
		}
		replicas = append(replicas, s)
	}
	return m, replicas, dir, func() {
		for _, s := range replicas {
			s.Stop()
		}
		_ = os.RemoveAll(dir)
	}
}

// List the nodes that are not NORMAL.
func Example() {
	_, replicas, dir, stop := exampleCluster()
	defer stop()

	conf, err := client.TLSFiles{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "viewer.pem"), Key: filepath.Join(dir, "viewer.key"),
	}.Config()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.New(client.Config{Targets: []string{replicas[0].Address, replicas[1].Address}, TLS: conf})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	list, err := c.ListNodes(ctx, &lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_SICK, lofamov1.State_FAILED}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("revision", list.GetRevision())
	for _, n := range list.GetNodes() {
		fmt.Println(n.GetId(), n.GetState(), n.GetCause())
	}
	// Output:
	// revision 41
	// n1-0-0 SICK HOST
}

// List once, then follow the changes from the list's revision. The watch survives the death of the replica that serves
// it.
func ExampleClient_Watch() {
	m, replicas, dir, stop := exampleCluster()
	defer stop()
	conf, err := client.TLSFiles{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "viewer.pem"), Key: filepath.Join(dir, "viewer.key"),
	}.Config()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.New(client.Config{Targets: []string{replicas[0].Address, replicas[1].Address}, TLS: conf})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	list, err := c.ListNodes(ctx, &lofamov1.ListNodesRequest{})
	if err != nil {
		fmt.Println(err)
		return
	}
	m.Commit(42, &lofamov1.Event{Node: "n1-0-0", From: lofamov1.State_SICK, To: lofamov1.State_FAILED})
	err = c.Watch(ctx, client.WatchOptions{After: list.GetRevision()}, func(r *lofamov1.WatchResponse) error {
		for _, e := range r.GetEvents() {
			fmt.Println(r.GetRevision(), e.GetNode(), e.GetFrom(), "to", e.GetTo())
		}
		if r.GetRevision() == 42 {
			replicas[0].Stop()
			m.Commit(43, &lofamov1.Event{Node: "n1-0-0", From: lofamov1.State_FAILED, To: lofamov1.State_NORMAL})
			return nil
		}
		return client.ErrStop
	})
	if errors.Is(err, client.ErrCompacted) {
		fmt.Println("list again")
		return
	}
	fmt.Println(err)
	// Output:
	// 42 n1-0-0 SICK to FAILED
	// 43 n1-0-0 FAILED to NORMAL
	// <nil>
}

// A call that no replica answers returns an error with the reason of each.
func ExampleNoAnswerError() {
	_, replicas, dir, stop := exampleCluster()
	defer stop()
	conf, err := client.TLSFiles{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "viewer.pem"), Key: filepath.Join(dir, "viewer.key"),
	}.Config()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.New(client.Config{Targets: []string{replicas[0].Address}, TLS: conf, TryTimeout: 20 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	replicas[0].Refuse(status.Error(codes.Unavailable, "stopping"))
	_, err = c.ListSupervisors(ctx)
	var none *client.NoAnswerError
	if errors.As(err, &none) {
		for _, t := range none.Tried {
			fmt.Println(status.Convert(t.Err).Message())
		}
	}
	// Output: stopping
}
