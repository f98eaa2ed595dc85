package embedded_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
)

// TestUseOfEndedMember: reads and writes during and after a member's end are refused. They do not reach a
// closed database, and do not keep the member from ending.
func TestUseOfEndedMember(t *testing.T) {
	dir := keys(t)
	cfg := config(t, dir)
	m := start(t, cfg)
	c := m.Client()
	uses := map[string]func(context.Context) error{
		"own copy": func(ctx context.Context) error { _, err := c.Get(ctx, "kept", clientv3.WithSerializable()); return err },
		"quorum":   func(ctx context.Context) error { _, err := c.Get(ctx, "kept"); return err },
		"write":    func(ctx context.Context) error { _, err := c.Put(ctx, "x", "y"); return err },
		"delete":   func(ctx context.Context) error { _, err := c.Delete(ctx, "x"); return err },
		"fenced": func(ctx context.Context) error {
			_, err := c.Txn(ctx).Then(clientv3.OpPut("x", "y")).Commit()
			return err
		},
		"read only": func(ctx context.Context) error {
			_, err := c.Txn(ctx).Then(clientv3.OpGet("kept")).Commit()
			return err
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.Put(ctx, "kept", "in the database")
	for err != nil && ctx.Err() == nil { // while it elects itself
		_, err = c.Put(ctx, "kept", "in the database")
	}
	var begun, done sync.WaitGroup
	for name, use := range uses {
		begun.Add(1)
		done.Go(func() {
			err := use(ctx)
			begun.Done()
			for err == nil {
				err = use(ctx)
			}
			if !errors.Is(err, embedded.ErrStopped) {
				t.Errorf("%s, as the member ended: %v", name, err)
			}
			if err := use(ctx); !errors.Is(err, embedded.ErrStopped) {
				t.Errorf("%s, of a member that has ended: %v", name, err)
			}
		})
	}
	begun.Wait()
	m.EndByItself()
	done.Wait()
	select {
	case err := <-m.Err():
		if !errors.Is(err, embedded.ErrEnded) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the member ended and nobody is told")
	}

	backup, err := c.Snapshot(ctx)
	if err == nil {
		_, err = backup.Read(make([]byte, 1))
	}
	if !errors.Is(err, embedded.ErrStopped) {
		t.Errorf("a snapshot within the process of a member that has ended: %v", err)
	}

	// Calls at its address are refused as well, and the process survives.
	conn, err := grpc.NewClient(strings.TrimPrefix(cfg.ClientURL, "https://"),
		grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, dir, "supervisor"))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = etcdserverpb.NewKVClient(conn).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte("kept"), Serializable: true})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), embedded.ErrStopped.Error()) {
		t.Errorf("a read by the address of a member that has ended: %v", err)
	}
	snap, err := etcdserverpb.NewMaintenanceClient(conn).Snapshot(ctx, &etcdserverpb.SnapshotRequest{})
	if err == nil {
		_, err = snap.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), embedded.ErrStopped.Error()) {
		t.Errorf("a snapshot of a member that has ended: %v", err)
	}
}
