package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// admin calls do with one supervisor after the other until one succeeds. do may take long, so a short call first checks
// within TryTimeout that the supervisor answers.
func (c *Client) admin(ctx context.Context, do func(context.Context, lofamov1.SupervisorAdminClient) error) error {
	return c.atOne(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return do(ctx, lofamov1.NewSupervisorAdminClient(conn))
	})
}

// atOne is admin for any service. The context of do ends with do.
func (c *Client) atOne(ctx context.Context, do func(context.Context, *grpc.ClientConn) error) error {
	return c.atEach(ctx, func(ctx context.Context, i int) error { return c.at(ctx, i, do) })
}

// watchOne is atOne for a watch: it leaves a supervisor that has become silent.
func (c *Client) watchOne(ctx context.Context, do func(context.Context, *grpc.ClientConn) error) error {
	return c.atEach(ctx, func(ctx context.Context, i int) error { return c.watchAt(ctx, i, do) })
}

func (c *Client) atEach(ctx context.Context, do func(context.Context, int) error) error {
	for f := c.find(c.start(), listSupervisors); ; {
		i, err := f.next(ctx)
		if err != nil {
			return err
		}
		err = do(ctx, i)
		var begun finalError
		if err == nil || ctx.Err() != nil || errors.As(err, &begun) || !otherMayAnswer(err) {
			return err
		}
		f.failed(i, err)
	}
}

// following is watchOne for a long stream: do sets got at the first response. After a failure it goes to the next supervisor. A response,
// or a stream that lasted for TryTimeout, starts the count of failures again. It fails once the count reaches the number of supervisors.
func (c *Client) following(ctx context.Context, do func(ctx context.Context, conn *grpc.ClientConn, got *bool) error) error {
	for f := c.find(c.start(), listSupervisors); ; {
		i, err := f.next(ctx)
		if err != nil {
			return err
		}
		got, began := false, time.Now()
		err = c.watchAt(ctx, i, func(ctx context.Context, conn *grpc.ClientConn) error { return do(ctx, conn, &got) })
		got = got || time.Since(began) >= c.cfg.TryTimeout
		var begun finalError
		if err == nil || ctx.Err() != nil || errors.As(err, &begun) || !otherMayAnswer(err) {
			return err
		}
		if got {
			f = c.find(i+1, listSupervisors)
		}
		f.failed(i, err)
		if got && len(f.order) > 0 {
			if err := pause(ctx, 0); err != nil { // in case all supervisors break off at once
				return err
			}
		}
	}
}

// at calls do with the connection to a supervisor. The context of do ends with do.
func (c *Client) at(ctx context.Context, i int, do func(context.Context, *grpc.ClientConn) error) error {
	conn, err := c.conn(i)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that do has not read to its end
	return do(ctx, conn)
}

// watchAt is at, and fails when the supervisor has become silent.
func (c *Client) watchAt(ctx context.Context, i int, do func(context.Context, *grpc.ClientConn) error) error {
	conn, err := c.conn(i)
	if err != nil {
		return err
	}
	heard, stop := c.whileHeard(ctx, i)
	defer stop()
	err = do(heard, conn)
	var own finalError
	if ctx.Err() == nil && heard.Err() != nil && !errors.As(err, &own) {
		return context.Cause(heard)
	}
	return err
}

// ListMembers returns the members of the supervisors' embedded etcd.
func (c *Client) ListMembers(ctx context.Context) (resp *lofamov1.ListMembersResponse, err error) {
	err = c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		resp, err = s.ListMembers(ctx, &lofamov1.ListMembersRequest{})
		return err
	})
	return resp, err
}

// AddMember adds a member to the embedded etcd and calls each for every step. It returns nil when the member votes.
func (c *Client) AddMember(ctx context.Context, req *lofamov1.AddMemberRequest, each func(*lofamov1.MemberProgress) error) error {
	return c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		stream, err := s.AddMember(ctx, req)
		return progress(stream, err, each)
	})
}

// ReplaceMember replaces a member whose data are lost by an empty one of the same name. If the supervisor fails on the
// way, AddMember continues the replacement.
func (c *Client) ReplaceMember(ctx context.Context, req *lofamov1.ReplaceMemberRequest, each func(*lofamov1.MemberProgress) error) error {
	return c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		stream, err := s.ReplaceMember(ctx, req)
		return progress(stream, err, each)
	})
}

func progress(stream grpc.ServerStreamingClient[lofamov1.MemberProgress], err error, each func(*lofamov1.MemberProgress) error) error {
	if err != nil {
		return err
	}
	begun := false
	for {
		p, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && begun:
			return finalError{err} // another supervisor must not start it again
		case err != nil:
			return err
		}
		begun = true
		if err := each(p); err != nil {
			return finalError{err}
		}
	}
}

// RemoveMember removes a member.
func (c *Client) RemoveMember(ctx context.Context, name string) (resp *lofamov1.RemoveMemberResponse, err error) {
	err = c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		resp, err = s.RemoveMember(ctx, &lofamov1.RemoveMemberRequest{Name: name})
		return err
	})
	return resp, err
}

// DisarmAlarms clears the alarms of a member, or of all with an empty name.
func (c *Client) DisarmAlarms(ctx context.Context, name string) (resp *lofamov1.DisarmAlarmsResponse, err error) {
	err = c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		resp, err = s.DisarmAlarms(ctx, &lofamov1.DisarmAlarmsRequest{Name: name})
		return err
	})
	return resp, err
}

// Defragment frees the unused space of a member.
func (c *Client) Defragment(ctx context.Context, req *lofamov1.DefragmentRequest) (resp *lofamov1.DefragmentResponse, err error) {
	err = c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		resp, err = s.Defragment(ctx, req)
		return err
	})
	return resp, err
}

// Snapshot writes a snapshot of the store to w. It fails unless all bytes came and their checksum is right.
func (c *Client) Snapshot(ctx context.Context, w io.Writer) (header *lofamov1.SnapshotHeader, size uint64, err error) {
	err = c.admin(ctx, func(ctx context.Context, s lofamov1.SupervisorAdminClient) error {
		stream, err := s.Snapshot(ctx, &lofamov1.SnapshotRequest{})
		if err != nil {
			return err
		}
		header, size, err = takeSnapshot(stream, w)
		if err != nil && size > 0 {
			return finalError{fmt.Errorf("after %d bytes: %s", size, reason(err))}
		}
		return err
	})
	return header, size, err
}

func takeSnapshot(stream grpc.ServerStreamingClient[lofamov1.SnapshotChunk], w io.Writer) (header *lofamov1.SnapshotHeader,
	size uint64, err error) {
	sum := sha256.New()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return header, size, errors.New("the snapshot ended without its checksum")
		}
		if err != nil {
			return header, size, err
		}
		if h := chunk.GetHeader(); h != nil {
			header = h
		}
		n, err := w.Write(chunk.GetData())
		size += uint64(n)
		if err != nil {
			return header, size, fmt.Errorf("write the snapshot: %w", err)
		}
		sum.Write(chunk.GetData())
		if end := chunk.GetTrailer(); end != nil {
			if end.GetBytes() != size || !slices.Equal(end.GetSha256(), sum.Sum(nil)) {
				return header, size, fmt.Errorf("received %d of %d bytes: the checksum does not agree", size, end.GetBytes())
			}
			return header, size, nil
		}
	}
}
