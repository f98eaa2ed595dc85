package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/pki"
)

// visitor is a logged-in user.
type visitor struct {
	pki.WebClaims
}

// as admits logged-in users that may view the map.
func (s *Server) as(do func(http.ResponseWriter, *http.Request, visitor)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie(s.cfg.Cookie)
		if err != nil {
			refuse(w, http.StatusUnauthorized, "not logged in: 'lofamoctl web' opens the page with a login")
			return
		}
		c, _, err := pki.OpenWeb(s.cfg.Verifier, s.cfg.Cluster, s.cfg.Self, cookie.Value, s.cfg.Now(), pki.WebSession)
		if err == nil && s.revoked(c) {
			err = pki.ErrRevoked
		}
		if err != nil {
			why := "the session is not one of this cluster: 'lofamoctl web' begins one"
			if errors.Is(err, pki.ErrWebExpired) {
				why = "the session has ended: 'lofamoctl web' begins another"
			}
			refuse(w, http.StatusUnauthorized, why)
			return
		}
		_ = bounded.Admit(r, c.Subject) // beyond its share of connections a subject is still served, but may be evicted
		do(w, r, visitor{c})
	}
}

// listDelay is the time within which all replicas get a new list of revoked certificates. Until then, a replica without the list signs
// sessions and handovers for a revoked person. So all replicas refuse sessions, logins and handovers of the first listDelay after a
// revocation. A person with a new certificate can log in after that time.
const listDelay = time.Minute

// revoked reports whether an operator revoked the person's certificate after c.Issued, or less than listDelay before c.Issued.
func (s *Server) revoked(c pki.WebClaims) bool {
	return s.cfg.Verifier.RevokedSince(c.Subject, time.Unix(c.Issued, 0).Add(-listDelay))
}

// oldestList is the greatest age of a list that sessions and handovers can be dated back by, so that a session can still last an hour.
const oldestList = pki.MaxWebSession - time.Hour

// issued returns the time from which this replica's sessions and handovers count: when its list of revoked certificates was last known to
// be up to date. A replica without a quorum does not get new revocations, and others must not take its word for the time since then. If its
// list is older than oldestList, or of unknown age, known is false: no date tells others how old the list is.
func (s *Server) issued(now time.Time) (at time.Time, known bool) {
	if s.cfg.QuorumAge == nil {
		return now, true
	}
	age := s.cfg.QuorumAge()
	if age < 0 || age > oldestList {
		return now.Add(-oldestList), false
	}
	return now.Add(-age), true
}

// leastHandover is the shortest useful life of a handover.
const leastHandover = 2 * time.Minute

// handoverEnd returns when a handover ends. issued is when this replica's list of revoked certificates was last known to be complete. The
// end is issued + WebHandoverLife, because earlier versions refuse longer handovers. If that leaves less than leastHandover, the end is
// now + WebHandoverLife.
func handoverEnd(issued, now time.Time) time.Time {
	if end := issued.Add(pki.WebHandoverLife); end.Sub(now) >= leastHandover {
		return end
	}
	return now.Add(pki.WebHandoverLife)
}

// login exchanges a token for a session. The token is signed with a person's certificate, or by another replica
// for a user that is logged in there.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Token string `json:"token"`
	}
	if err := body(w, r, &in); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	now := s.cfg.Now()
	c, kind, err := pki.OpenWeb(s.cfg.Verifier, s.cfg.Cluster, s.cfg.Self, in.Token, now, pki.WebLogin, pki.WebHandover)
	signed := c
	if kind == pki.WebLogin {
		c.Issued = now.Unix() // the session begins now, even if the person signed the token earlier
	}
	if err == nil && s.revoked(c) { // OpenWeb checks only the signer, which may be a replica
		err = fmt.Errorf("%w: that of %s; unless a serial number is revoked, the page accepts a new certificate %s after the revocation",
			pki.ErrRevoked, c.Subject, listDelay)
	}
	if err != nil {
		s.cfg.Logger.Warn("web: a login was refused", "from", r.RemoteAddr, "err", err)
		refuse(w, http.StatusUnauthorized, "the login was refused: "+err.Error())
		return
	}
	if err := s.used.use(signed, now); err != nil {
		s.cfg.Logger.Warn("web: a login was refused", "from", r.RemoteAddr, "subject", c.Subject, "err", err)
		refuse(w, http.StatusUnauthorized, err.Error())
		return
	}
	issued, known := s.issued(now)
	audience := ""
	if !known {
		audience = s.cfg.Self // others may know that the person was revoked long ago
	}
	until := min(now.Add(s.cfg.Session).Unix(), issued.Add(pki.MaxWebSession).Unix(), c.Until)
	token, err := pki.SignWeb(s.cfg.Signer, pki.WebSession, pki.WebClaims{
		Cluster: s.cfg.Cluster, Subject: c.Subject, Audience: audience, ID: pki.NewWebID(), Issued: issued.Unix(), Expires: until,
		Until: until,
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	s.cfg.Logger.Info("web: login", "subject", c.Subject, "by", string(kind), "from", r.RemoteAddr, "until", time.Unix(until, 0).UTC())
	http.SetCookie(w, s.cookie(token, int(until-now.Unix())))
	w.WriteHeader(http.StatusNoContent)
}

// cookie is hidden from scripts, and browsers do not send it with requests that another site triggers.
func (s *Server) cookie(value string, age int) *http.Cookie {
	return &http.Cookie{Name: s.cfg.Cookie, Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: s.cfg.Secure,
		SameSite: http.SameSiteStrictMode}
}

func (s *Server) logout(w http.ResponseWriter, _ *http.Request) {
	http.SetCookie(w, s.cookie("", -1))
	w.WriteHeader(http.StatusNoContent)
}

// address returns the fingerprint of this replica's certificate for browsers, signed, so that lofamoctl can show
// users the value to compare.
func (s *Server) address(w http.ResponseWriter, _ *http.Request) {
	now := s.cfg.Now()
	token, err := pki.SignWeb(s.cfg.Signer, pki.WebAddress, pki.WebClaims{
		Cluster: s.cfg.Cluster, Subject: pki.WebSubject(s.cfg.Signer.Identity()), ID: pki.NewWebID(), Issued: now.Unix(),
		Expires:     now.Add(pki.WebLoginLife).Unix(),
		Fingerprint: s.cfg.Fingerprint,
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, http.StatusOK, map[string]string{"token": token})
}

// elsewhere is another replica, with a handover token for the visitor.
type elsewhere struct {
	Peer
	Token string `json:"token"`
}

func (s *Server) session(w http.ResponseWriter, _ *http.Request, who visitor) {
	now := s.cfg.Now()
	issued, known := s.issued(now)
	others := []elsewhere{}
	if s.cfg.Peers != nil && known {
		for _, p := range s.cfg.Peers() {
			token, err := pki.SignWeb(s.cfg.Signer, pki.WebHandover, pki.WebClaims{
				Cluster: s.cfg.Cluster, Subject: who.Subject, Audience: p.ID, ID: pki.NewWebID(), Issued: issued.Unix(),
				Expires: handoverEnd(issued, now).Unix(), Until: who.Expires,
			})
			if err != nil {
				refuse(w, http.StatusInternalServerError, err.Error())
				return
			}
			others = append(others, elsewhere{p, token})
		}
	}
	role := who.Role()
	reply(w, http.StatusOK, map[string]any{
		"subject": who.Subject, "expires": who.Expires, "now": now.UnixMilli(), "supervisor": s.cfg.Self, "cluster": s.cfg.Cluster,
		"others": others, "aliveMs": s.cfg.Alive.Milliseconds(),
		"may": map[string]bool{"approve": role == pki.RoleApprover, "acknowledge": role == pki.RoleOperator,
			"deny": slices.Contains([]pki.Role{pki.RoleApprover, pki.RoleOperator}, role)},
	})
}

// body decodes a page's JSON request. It refuses content types that a form could send.
func body(w http.ResponseWriter, r *http.Request, into any) error {
	if r.Header.Get("Content-Type") != "application/json" {
		return errors.New("content type: want application/json")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(writeTime)) // not of a test's recorder
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
			return fmt.Errorf("body: want at most %d bytes", long.Limit)
		}
		return errors.New("body: want a JSON object with the required fields")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("body: want one JSON object")
	}
	return nil
}
