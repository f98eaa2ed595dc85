// Package weblogin is how a person's certificate becomes a session in a browser: short statements, signed with keys
// that the cluster's certificates are of, which any replica verifies without having seen them before.
//
//	lofamoctl ──login, signed by the person──► replica ──session, signed by the replica──► cookie
//	                                              └──handover, signed by the replica──► another replica
//
// A token is three parts in unpadded base64url, "CLAIMS.CERTIFICATE.SIGNATURE": JSON, DER, Ed25519. The kind is under the
// signature, so that a login is never taken for a session. This package has no state: that a login works once only is
// for who opens it.
package weblogin

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

	"github.com/lofamo/lofamo/internal/pki"
)

// Kind is what a token is good for. The zero value is none.
type Kind string

// The kinds.
const (
	Login    Kind = "web login"       // of a person, for one replica, once
	Handover Kind = "web handover"    // of a replica, for another one, once, for who is logged in at it
	Session  Kind = "web session"     // of a replica, for all of them, until it ends
	Address  Kind = "web certificate" // of a replica: the fingerprint of the certificate that it shows to browsers
)

// Bounds of tokens.
const (
	LoginLife    = time.Minute      // a link is opened at once
	HandoverLife = 10 * time.Minute // the page asks for new ones before
	MaxSession   = 24 * time.Hour
	Skew         = 2 * time.Minute // accepted clock difference between a person's machine and a replica
	latest       = 1 << 40         // latest time in a token, in seconds since 1970, so that no difference of two times overflows
	// MaxToken bounds a token, in bytes: a cookie has room for 4,096.
	MaxToken = 3500
)

// Claims is what a token says.
type Claims struct {
	Cluster string `json:"cluster"`
	// Subject is who it is for, "ROLE/NAME"; of an Address the replica.
	Subject string `json:"sub"`
	// Audience is the id of the replica that may take it; empty: all.
	Audience string `json:"aud,omitempty"`
	// ID is random: a token that works once is known by it.
	ID string `json:"id"`
	// Issued and Expires are in seconds since 1970, by the clock of who signed it.
	Issued  int64 `json:"iat"`
	Expires int64 `json:"exp"`
	// Until bounds the sessions that come of it, in seconds since 1970; of a login the end of the certificate does.
	Until int64 `json:"until,omitempty"`
	// Fingerprint of an Address: SHA-256 of the certificate's DER, in hexadecimal.
	Fingerprint string `json:"fpr,omitempty"`
}

// Readers are the roles that may look at the map, and log in.
func Readers() []pki.Role { return []pki.Role{pki.RoleViewer, pki.RoleOperator, pki.RoleApprover} }

// NewID returns 128 random bits.
func NewID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// Sign makes a token of a kind.
func Sign(s *pki.Signer, kind Kind, c Claims) (string, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("sign %s: %w", kind, err)
	}
	e := base64.RawURLEncoding
	out := e.EncodeToString(payload) + "." + e.EncodeToString(s.Cert()) + "." + e.EncodeToString(s.SignStatement(string(kind), payload))
	if len(out) > MaxToken {
		return "", fmt.Errorf("sign %s: %d bytes: want %d at most", kind, len(out), MaxToken)
	}
	return out, nil
}

// NewLogin is the token with which a person logs in at a replica; empty: at any.
func NewLogin(s *pki.Signer, audience string, now time.Time) (string, error) {
	id := s.Identity()
	if !slices.Contains(Readers(), id.Role) {
		return "", fmt.Errorf("log in as %s: role %s: want one of %v", id, id.Role, Readers())
	}
	return Sign(s, Login, Claims{Cluster: id.Cluster, Subject: Subject(id), Audience: audience, ID: NewID(), Issued: now.Unix(),
		Expires: now.Add(LoginLife).Unix()})
}

// Subject is an identity as it is written in decisions: "ROLE/NAME".
func Subject(id pki.Identity) string { return string(id.Role) + "/" + id.Name }

// Role returns the role of the subject; empty where it has none that may log in.
func (c Claims) Role() pki.Role {
	role, name, _ := strings.Cut(c.Subject, "/")
	if name == "" || !slices.Contains(Readers(), pki.Role(role)) {
		return ""
	}
	return pki.Role(role)
}

// ErrExpired is of a token that was good, and is too old.
var ErrExpired = errors.New("it has expired")

// Open verifies a token of one of the kinds: whose it is, that it is of this cluster, for this replica, and of now.
func Open(v *pki.Verifier, cluster, self, token string, now time.Time, kinds ...Kind) (Claims, Kind, error) {
	payload, cert, sig, err := split(token)
	if err != nil {
		return Claims{}, "", err
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
			return Claims{}, "", fmt.Errorf("%s of %s: %w", kind, by, err)
		}
		if c.Until == 0 || kind == Login {
			c.Until = notAfter.Unix()
		}
		return c, kind, nil
	}
	return Claims{}, "", fmt.Errorf("token: %w", err)
}

// split takes a token apart.
func split(token string) (payload, cert, sig []byte, err error) {
	if len(token) > MaxToken {
		return nil, nil, nil, fmt.Errorf("token: %d bytes: want %d at most", len(token), MaxToken)
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

// claims decodes what was signed; nothing else may stand there.
func claims(payload []byte) (c Claims, err error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, errors.New("claims: not those of a token")
	}
	return c, nil
}

// check says whether who signed it may say so, here and now.
func (c Claims) check(kind Kind, by pki.Identity, cluster, self string, now time.Time) error {
	life := map[Kind]time.Duration{Login: LoginLife, Handover: HandoverLife, Session: MaxSession, Address: LoginLife}[kind]
	switch {
	case kind == Login && (!slices.Contains(Readers(), by.Role) || c.Subject != Subject(by)):
		return fmt.Errorf("subject %q: want who signed it, of role %v", c.Subject, Readers())
	case kind != Login && by.Role != pki.RoleSupervisor:
		return fmt.Errorf("signed by role %s: want a supervisor", by.Role)
	case (kind == Session || kind == Handover) && c.Role() == "":
		return fmt.Errorf("subject %q: want ROLE/NAME with a role of %v", c.Subject, Readers())
	case c.Cluster != cluster || by.Cluster != cluster:
		return fmt.Errorf("cluster %q: want %q", c.Cluster, cluster)
	case c.Audience != "" && c.Audience != self:
		return fmt.Errorf("it is for supervisor %q: this is %q", c.Audience, self)
	case kind == Handover && c.Audience == "":
		return errors.New("it is for no supervisor")
	case c.ID == "" || len(c.ID) > 64:
		return fmt.Errorf("id of %d bytes: want 1 to 64", len(c.ID))
	case min(c.Issued, c.Expires, c.Until) < 0 || max(c.Issued, c.Expires, c.Until) > latest:
		return fmt.Errorf("iat %d, exp %d, until %d: want seconds since 1970, 0 to %d", c.Issued, c.Expires, c.Until, int64(latest))
	case c.Expires <= c.Issued || c.Expires-c.Issued > int64(life/time.Second):
		return fmt.Errorf("valid for %d s: want 1 s to %v", c.Expires-c.Issued, life)
	case now.Unix() < c.Issued-int64(Skew/time.Second):
		return fmt.Errorf("issued %v in the future: set the clocks right", time.Unix(c.Issued, 0).Sub(now).Round(time.Second))
	case kind == Session && now.Unix() >= c.Expires, now.Unix() >= c.Expires+int64(Skew/time.Second):
		return ErrExpired
	}
	return nil
}
