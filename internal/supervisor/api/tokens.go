package api

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// CreateToken implements the service.
func (e *Enrolment) CreateToken(ctx context.Context, req *lofamov1.CreateTokenRequest) (*lofamov1.CreateTokenResponse, error) {
	return leadBy(ctx, e.s, func(ctx context.Context, by string) (*lofamov1.CreateTokenResponse, error) {
		return e.createToken(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.CreateTokenResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).CreateToken(ctx, req)
	})
}

func (e *Enrolment) createToken(ctx context.Context, by string, req *lofamov1.CreateTokenRequest) (*lofamov1.CreateTokenResponse, error) {
	lifetime := cmp.Or(req.GetLifetime().AsDuration(), tokenLifetime)
	if lifetime < minTokenLifetime || lifetime > maxTokenLifetime {
		return nil, invalid("lifetime", "given %s: want %s to %s", lifetime, minTokenLifetime, maxTokenLifetime)
	}
	uses := int(cmp.Or(req.GetUses(), 1))
	if uses > maxTokenUses || req.GetNode() != "" && uses > 1 {
		return nil, invalid("uses", "given %d: want 1 to %d, or 1 for a named node", uses, maxTokenUses)
	}
	if req.GetNode() != "" && !fault.IsName(req.GetNode()) {
		return nil, invalid("node", "given %.64q: want 1 to 63 letters, digits, '-', '_' and '.'", req.GetNode())
	}
	if err := checkPatterns(req); err != nil {
		return nil, err
	}
	pin, err := e.cfg.Pin()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	token, now := pki.NewJoinToken(pin), time.Now()
	sum := token.Sum()
	stored := store.JoinToken{ID: token.ID, Sum: sum[:], By: by, Made: now, Expires: now.Add(lifetime), Uses: uses, Node: req.GetNode(),
		Names: req.GetNames()}
	kv, err := stored.Put()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	_, err = e.s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) {
		all, err := e.cfg.Tokens.Tokens(ctx)
		if err != nil {
			return nil, storeUnread(err)
		}
		w := store.Write{Puts: []store.KV{kv}, Guards: []store.Guard{stored.Guard()}}
		for _, t := range all {
			if now.After(t.Expires) && len(w.Deletes) < maxJoining {
				w.Deletes = append(w.Deletes, store.TokenKey(t.ID))
			}
		}
		if n := len(all) - len(w.Deletes); n >= store.MaxTokens {
			return nil, status.Errorf(codes.ResourceExhausted, "there are %d tokens: want fewer than %d: revoke some", n, store.MaxTokens)
		}
		return []store.Write{w}, nil
	})
	if err != nil {
		return nil, err
	}
	e.cfg.Logger.Info("token made", "token", token.ID, "by", by, "uses", uses, "lifetime", lifetime)
	return &lofamov1.CreateTokenResponse{Token: token.String(), Info: tokenInfo(stored)}, nil
}

// checkPatterns checks the patterns of names in a request for a token.
func checkPatterns(req *lofamov1.CreateTokenRequest) error {
	if n := len(req.GetNames()); n > maxPatterns || n > 0 && req.GetNode() != "" {
		return invalid("names", "given %d: want at most %d, and none for a named node", n, maxPatterns)
	}
	for i, p := range req.GetNames() {
		if _, err := path.Match(p, ""); err != nil || p == "" || len(p) > maxPattern || strings.IndexFunc(p, notInPattern) >= 0 {
			return invalid(fmt.Sprintf("names[%d]", i), "given %.64q: want a pattern of names of 1 to %d bytes, such as gpu-* or n[0-9]?",
				p, maxPattern)
		}
	}
	return nil
}

// notInPattern reports whether no name can have a character, which is no part of a pattern's syntax either.
func notInPattern(c rune) bool {
	return c >= utf8.RuneSelf || !fault.IsName(string(c)) && !strings.ContainsRune("-_.*?[]^", c)
}

func tokenInfo(t store.JoinToken) *lofamov1.JoinToken {
	out := &lofamov1.JoinToken{Id: t.ID, By: t.By, Made: timestamppb.New(t.Made), Expires: timestamppb.New(t.Expires), Uses: uint32(t.Uses),
		Node: t.Node, Names: t.Names}
	for _, use := range t.Used {
		out.Nodes = append(out.Nodes, use.Node)
	}
	return out
}

// ListTokens implements the service.
func (e *Enrolment) ListTokens(ctx context.Context, _ *lofamov1.ListTokensRequest) (*lofamov1.ListTokensResponse, error) {
	all, err := e.cfg.Tokens.Tokens(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	resp, now := &lofamov1.ListTokensResponse{}, time.Now()
	for _, t := range all {
		if !now.After(t.Expires) {
			resp.Tokens = append(resp.Tokens, tokenInfo(t))
		}
	}
	return resp, nil
}

// RevokeToken implements the service.
func (e *Enrolment) RevokeToken(ctx context.Context, req *lofamov1.RevokeTokenRequest) (*lofamov1.RevokeTokenResponse, error) {
	return leadBy(ctx, e.s, func(ctx context.Context, by string) (*lofamov1.RevokeTokenResponse, error) {
		_, err := e.s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) {
			t, ok, err := e.cfg.Tokens.Token(ctx, req.GetId())
			if err != nil {
				return nil, storeUnread(err)
			}
			if !ok || time.Now().After(t.Expires) {
				return nil, status.Errorf(codes.NotFound, "id: given %.64q: want a token that has not expired", req.GetId())
			}
			return []store.Write{{Deletes: []string{store.TokenKey(t.ID)}, Guards: []store.Guard{t.Guard()}}}, nil
		})
		if err != nil {
			return nil, err
		}
		e.cfg.Logger.Info("token revoked", "token", req.GetId(), "by", by)
		return &lofamov1.RevokeTokenResponse{}, nil
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.RevokeTokenResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).RevokeToken(ctx, req)
	})
}
