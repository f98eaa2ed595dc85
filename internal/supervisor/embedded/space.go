package embedded

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// chunkBytes is the size of a piece of a snapshot.
const chunkBytes = 256 << 10

// anyKey need not exist: reading it returns the store's revision.
const anyKey = "revision"

// Snapshot implements the service.
func (s *Admin) Snapshot(_ *lofamov1.SnapshotRequest, stream grpc.ServerStreamingServer[lofamov1.SnapshotChunk]) error {
	if err := s.embedded(); err != nil {
		return err
	}
	ctx := stream.Context()
	header, err := s.snapshotHeader(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&lofamov1.SnapshotChunk{Header: header}); err != nil {
		return err
	}
	snap, err := s.cfg.Client.SnapshotWithVersion(ctx)
	if err != nil {
		return status.Errorf(codes.Unavailable, "snapshot of %s: %v", header.GetMember(), err)
	}
	defer func() { _ = snap.Snapshot.Close() }()
	whole := sha256.New()
	var total uint64
	for {
		buf := make([]byte, chunkBytes) // gRPC may keep it
		n, err := io.ReadFull(snap.Snapshot, buf)
		if n > 0 {
			whole.Write(buf[:n])
			total += uint64(n)
			if err := stream.Send(&lofamov1.SnapshotChunk{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return status.Errorf(codes.Unavailable, "snapshot of %s after %d bytes: %v", header.GetMember(), total, err)
		}
	}
	return stream.Send(&lofamov1.SnapshotChunk{Trailer: &lofamov1.SnapshotTrailer{Bytes: total, Sha256: whole.Sum(nil)}})
}

// snapshotHeader returns the minimum content of the snapshot that follows it.
func (s *Admin) snapshotHeader(ctx context.Context) (*lofamov1.SnapshotHeader, error) {
	h := &lofamov1.SnapshotHeader{Cluster: s.cfg.Cluster, Member: s.cfg.Self}
	if resp, err := s.cfg.Client.MemberList(ctx, clientv3.WithSerializable()); err == nil {
		for _, m := range resp.Members {
			if hexID(m.ID) == s.cfg.Self {
				h.Member = m.Name
			}
		}
	}
	qctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	resp, err := s.cfg.Client.Get(qctx, anyKey, clientv3.WithKeysOnly())
	if h.Confirmed = err == nil; !h.Confirmed {
		if resp, err = s.cfg.Client.Get(ctx, anyKey, clientv3.WithKeysOnly(), clientv3.WithSerializable()); err != nil {
			return nil, status.Errorf(codes.Unavailable, "revision of %s: %v", h.GetMember(), err)
		}
	}
	h.Revision = uint64(resp.Header.GetRevision())
	return h, nil
}

// DisarmAlarms implements the service.
func (s *Admin) DisarmAlarms(ctx context.Context, req *lofamov1.DisarmAlarmsRequest) (*lofamov1.DisarmAlarmsResponse, error) {
	members, err := s.quorate(ctx)
	if err != nil {
		return nil, err
	}
	only := ""
	if req.GetName() != "" {
		m, err := find(members, req.GetName())
		if err != nil {
			return nil, err
		}
		only = m.GetId()
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	alarms, err := s.cfg.Client.AlarmList(ctx)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "list the alarms: %v", err)
	}
	resp := &lofamov1.DisarmAlarmsResponse{}
	var chosen []*etcdserverpb.AlarmMember
	for _, a := range alarms.Alarms {
		if only != "" && hexID(a.MemberID) != only {
			continue
		}
		name, err := checkDisarm(members, hexID(a.MemberID), a.Alarm)
		if err != nil {
			return nil, err // none is disarmed
		}
		chosen = append(chosen, a)
		resp.Disarmed = append(resp.Disarmed, fmt.Sprintf("%s of %s", a.Alarm, name))
	}
	for i, a := range chosen {
		if _, err := s.cfg.Client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return nil, status.Errorf(codes.Unavailable, "disarm %s: %v; disarmed before: %d of %d", resp.GetDisarmed()[i], err, i, len(chosen))
		}
	}
	slices.Sort(resp.Disarmed)
	if only == "" {
		was, err := s.cfg.Withdraw(ctx)
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		if was {
			resp.Disarmed = append(resp.Disarmed, "store rolled back (restart the replicas, one after the other)")
		}
	}
	return resp, nil
}

// roomFraction is the part of its quota that a store must have free before NOSPACE is cleared. etcd raises the
// alarm for a write that would take the store beyond the quota. The store itself is then still within it, by up to
// the size of that write.
const roomFraction = 16

// roomy returns the size that a store must stay below.
func roomy(quota uint64) uint64 { return quota - quota/roomFraction }

// checkDisarm returns the reason to keep an alarm, or else the name of the alarm's member. The alarm of a member that does not answer may
// go: it keeps the whole store read-only, and a member that comes back without room raises it again.
func checkDisarm(members []*lofamov1.Member, id string, alarm etcdserverpb.AlarmType) (name string, err error) {
	i := slices.IndexFunc(members, func(m *lofamov1.Member) bool { return m.GetId() == id })
	if i < 0 {
		return id, nil // of a removed member
	}
	m := members[i]
	switch {
	case alarm == etcdserverpb.AlarmType_CORRUPT:
		return "", status.Errorf(codes.FailedPrecondition, "CORRUPT of %s: its data differ from the others': replace it", m.GetName())
	case alarm == etcdserverpb.AlarmType_NOSPACE && m.GetQuotaBytes() > 0 && m.GetDbBytes() >= roomy(m.GetQuotaBytes()):
		return "", status.Errorf(codes.FailedPrecondition,
			"NOSPACE of %s: its store has %d bytes (%d in use) of the %d that it may have: want less than %d: defragment it after a compaction, "+
				"or give it a larger etcd.quotaBytes",
			m.GetName(), m.GetDbBytes(), m.GetDbInUseBytes(), m.GetQuotaBytes(), roomy(m.GetQuotaBytes()))
	}
	return m.GetName(), nil
}

// defragTime bounds a defragmentation: some seconds a gigabyte on a slow disk.
const defragTime = 10 * time.Minute

// Defragment implements the service.
func (s *Admin) Defragment(ctx context.Context, req *lofamov1.DefragmentRequest) (*lofamov1.DefragmentResponse, error) {
	if err := s.embedded(); err != nil {
		return nil, err
	}
	members, _, err := s.members(ctx)
	if err != nil {
		return nil, err
	}
	m, err := find(members, req.GetName())
	if err != nil {
		return nil, err
	}
	if !m.GetHealthy() {
		return nil, status.Errorf(codes.Unavailable, "defragment %s: %s", m.GetName(), m.GetProblem())
	}
	ctx, cancel := context.WithTimeout(ctx, defragTime)
	defer cancel()
	if req.GetCompact() {
		if err := s.compact(ctx); err != nil {
			return nil, err
		}
	}
	urls := strings.Split(m.GetClientUrl(), ",")
	err = s.at(urls, func(c *clientv3.Client) error {
		_, err := c.Defragment(ctx, urls[0])
		return err
	})
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "defragment %s: %s", m.GetName(), refusal(err))
	}
	after := &lofamov1.Member{Id: m.GetId()}
	s.inquire(ctx, after, urls)
	return &lofamov1.DefragmentResponse{BytesBefore: m.GetDbBytes(), BytesAfter: after.GetDbBytes()}, nil
}

// compact forgets all revisions but the newest.
func (s *Admin) compact(ctx context.Context) error {
	resp, err := s.cfg.Client.Get(ctx, anyKey, clientv3.WithKeysOnly())
	if err == nil {
		_, err = s.cfg.Client.Compact(ctx, resp.Header.GetRevision(), clientv3.WithCompactPhysical())
	}
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return status.Errorf(codes.Unavailable, "compact the store: %s", refusal(err))
	}
	return nil
}
