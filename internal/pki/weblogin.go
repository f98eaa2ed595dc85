package pki

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// WebKind is the purpose of a web token. The zero value is none.
//
// Web tokens turn a person's certificate into a session in a browser. They are short statements, signed with keys of the
// cluster's certificates. Every replica can verify them without having seen them before.
//
//	lofamoctl ──login, signed by the person──► replica ──session, signed by the replica──► cookie
//	                                              └──handover, signed by the replica──► another replica
//
// A token is three parts in unpadded base64url, "CLAIMS.CERTIFICATE.SIGNATURE": JSON, DER, Ed25519 or ECDSA. The signature covers
// the kind, so that a login is never accepted as a session. This package has no state: the caller checks that a login
// works only once.
type WebKind string

// The kinds of web tokens.
const (
	WebLogin    WebKind = "web login"       // by a person, for one replica, once
	WebHandover WebKind = "web handover"    // by a replica, for another one, once, for a person who is logged in
	WebSession  WebKind = "web session"     // by a replica, for all replicas, until it ends
	WebAddress  WebKind = "web certificate" // by a replica: the fingerprint of its certificate for browsers
)

// Limits of web tokens.
const (
	WebLoginLife    = time.Minute      // a link is opened at once
	WebHandoverLife = 10 * time.Minute // the page asks for new ones before
	MaxWebSession   = 24 * time.Hour
	WebSkew         = 2 * time.Minute // accepted clock difference between a person's machine and a replica
	latestWebTime   = 1 << 40         // latest time in a token, in seconds since 1970, so that no difference of two times overflows
	// MaxWebToken is the maximum length of a token in bytes: a cookie has room for 4,096.
	MaxWebToken = 3500
)

// WebClaims is the content of a web token.
type WebClaims struct {
	Cluster string `json:"cluster"`
	// Subject is the person, "ROLE/NAME"; for a WebAddress the replica.
	Subject string `json:"sub"`
	// Audience is the ID of the replica that may accept it; empty: all.
	Audience string `json:"aud,omitempty"`
	// ID is random. It identifies a token that works only once.
	ID string `json:"id"`
	// Issued and Expires are in seconds since 1970, by the signer's clock. In a session and in a handover, Issued is the time up to which the
	// signer's list of revoked certificates was known to be complete: others refuse the token after a later revocation of the person.
	Issued  int64 `json:"iat"`
	Expires int64 `json:"exp"`
	// Until is the latest end of the resulting sessions, in seconds since 1970. For a login, the certificate's end is.
	Until int64 `json:"until,omitempty"`
	// Fingerprint is for a WebAddress: SHA-256 of the certificate's DER, in hexadecimal.
	Fingerprint string `json:"fpr,omitempty"`
}

// WebReaders returns the roles that may read the map, and log in.
func WebReaders() []Role { return []Role{RoleViewer, RoleOperator, RoleApprover} }

// NewWebID returns 128 random bits.
func NewWebID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// SignWeb returns a token of a kind.
func SignWeb(s *Signer, kind WebKind, c WebClaims) (string, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("sign %s: %w", kind, err)
	}
	e := base64.RawURLEncoding
	out := e.EncodeToString(payload) + "." + e.EncodeToString(s.Cert()) + "." + e.EncodeToString(s.SignStatement(string(kind), payload))
	if len(out) > MaxWebToken {
		return "", fmt.Errorf("sign %s: %d bytes: want at most %d", kind, len(out), MaxWebToken)
	}
	return out, nil
}

// NewWebLogin returns a token for a person's login at a replica, or at any if audience is empty.
func NewWebLogin(s *Signer, audience string, now time.Time) (string, error) {
	id := s.Identity()
	if !slices.Contains(WebReaders(), id.Role) {
		return "", fmt.Errorf("log in as %s: role %s: want one of %s", id, id.Role, fault.List(WebReaders()))
	}
	return SignWeb(s, WebLogin, WebClaims{Cluster: id.Cluster, Subject: WebSubject(id), Audience: audience, ID: NewWebID(), Issued: now.Unix(),
		Expires: now.Add(WebLoginLife).Unix()})
}

// WebSubject returns an identity as written in decisions: "ROLE/NAME".
func WebSubject(id Identity) string { return string(id.Role) + "/" + id.Name }

// Role returns the subject's role, or "" if that role may not log in.
func (c WebClaims) Role() Role {
	role, name, _ := strings.Cut(c.Subject, "/")
	if name == "" || !slices.Contains(WebReaders(), Role(role)) {
		return ""
	}
	return Role(role)
}

// ErrWebExpired is the error for a valid token that is too old.
var ErrWebExpired = errors.New("it has expired")

// OpenWeb verifies a token of one of the kinds: its signer, cluster, audience and time.
func OpenWeb(v *Verifier, cluster, self, token string, now time.Time, kinds ...WebKind) (WebClaims, WebKind, error) {
	payload, cert, sig, err := splitWeb(token)
	if err != nil {
		return WebClaims{}, "", err
	}
	for _, kind := range kinds {
		by, notAfter, verifyErr := v.VerifyStatement(string(kind), cert, payload, sig)
		if verifyErr != nil {
			err = verifyErr
			continue
		}
		c, err := claims(payload)
		if err == nil {
			err = c.check(kind, by, cluster, self, now)
		}
		if err != nil {
			return WebClaims{}, "", fmt.Errorf("%s of %s: %w", kind, by, err)
		}
		if c.Until == 0 || kind == WebLogin {
			c.Until = notAfter.Unix()
		}
		return c, kind, nil
	}
	return WebClaims{}, "", fmt.Errorf("token: %w", err)
}

// splitWeb decodes the three parts of a token.
func splitWeb(token string) (payload, cert, sig []byte, err error) {
	if len(token) > MaxWebToken {
		return nil, nil, nil, fmt.Errorf("token: %d bytes: want at most %d", len(token), MaxWebToken)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, nil, nil, fmt.Errorf("token: %d parts: want 3", len(parts))
	}
	var raw [3][]byte
	for i, p := range parts {
		if raw[i], err = base64.RawURLEncoding.Strict().DecodeString(p); err != nil {
			return nil, nil, nil, fmt.Errorf("token: part %d: not base64url", i+1)
		}
	}
	return raw[0], raw[1], raw[2], nil
}

// claims decodes a signed payload. It refuses unknown fields.
func claims(payload []byte) (c WebClaims, err error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, errors.New("claims: not those of a token")
	}
	return c, nil
}

// check returns an error if the signer has no right to the claims, or if they are for another cluster, replica or time.
func (c WebClaims) check(kind WebKind, by Identity, cluster, self string, now time.Time) error {
	// Like a session, a handover may count from a time before its signature. So it may span as long as a session, but no longer.
	life := map[WebKind]time.Duration{WebLogin: WebLoginLife, WebHandover: MaxWebSession, WebSession: MaxWebSession,
		WebAddress: WebLoginLife}[kind]
	switch {
	case kind == WebLogin && (!slices.Contains(WebReaders(), by.Role) || c.Subject != WebSubject(by)):
		return fmt.Errorf("subject %q: want the signer, with one of the roles %s", c.Subject, fault.List(WebReaders()))
	case kind != WebLogin && by.Role != RoleSupervisor:
		return fmt.Errorf("signed by role %s: want a supervisor", by.Role)
	case (kind == WebSession || kind == WebHandover) && c.Role() == "":
		return fmt.Errorf("subject %q: want ROLE/NAME with one of the roles %s", c.Subject, fault.List(WebReaders()))
	case c.Cluster != cluster || by.Cluster != cluster:
		return fmt.Errorf("cluster %q: want %q", c.Cluster, cluster)
	case c.Audience != "" && c.Audience != self:
		return fmt.Errorf("it is for supervisor %q: this is %q", c.Audience, self)
	case kind == WebHandover && c.Audience == "":
		return errors.New("it is for no supervisor")
	case c.ID == "" || len(c.ID) > 64:
		return fmt.Errorf("id of %d bytes: want 1 to 64", len(c.ID))
	case min(c.Issued, c.Expires, c.Until) < 0 || max(c.Issued, c.Expires, c.Until) > latestWebTime:
		return fmt.Errorf("iat %d, exp %d, until %d: want seconds since 1970, 0 to %d", c.Issued, c.Expires, c.Until, int64(latestWebTime))
	case c.Expires <= c.Issued || c.Expires-c.Issued > int64(life/time.Second):
		return fmt.Errorf("valid for %d s: want 1 s to %v", c.Expires-c.Issued, life)
	case now.Unix() < c.Issued-int64(WebSkew/time.Second):
		return fmt.Errorf("issued %v in the future: set the clocks right", time.Unix(c.Issued, 0).Sub(now).Round(time.Second))
	case kind == WebSession && now.Unix() >= c.Expires, now.Unix() >= c.Expires+int64(WebSkew/time.Second):
		return ErrWebExpired
	}
	return nil
}
