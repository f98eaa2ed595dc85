package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base32"
	"fmt"
	"strings"
)

// JoinToken lets a node enrol: it proves to a supervisor that an operator wants a new node, and to the node that the
// supervisor belongs to the cluster.
type JoinToken struct {
	ID     string   // public name, 8 letters and digits
	Secret string   // 26 letters and digits: 128 random bits
	Pin    [32]byte // of the authority's key, see PinOf
}

// tokenVersion begins the text of every token.
const tokenVersion = "lofamo1"

// Sizes of the parts of a token, in random bytes.
const (
	tokenIDBytes     = 5
	tokenSecretBytes = 16
)

// MaxTokenText bounds the text of a token, in bytes.
const MaxTokenText = 128

var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// PinOf returns the SHA-256 sum of a certificate's public key, in DER. It stays the same when an authority's certificate is
// renewed with the same key.
func PinOf(cert *x509.Certificate) [32]byte { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// NewJoinToken makes a token of a cluster whose authority has the pin.
func NewJoinToken(pin [32]byte) JoinToken {
	var b [tokenIDBytes + tokenSecretBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return JoinToken{ID: tokenText.EncodeToString(b[:tokenIDBytes]), Secret: tokenText.EncodeToString(b[tokenIDBytes:]), Pin: pin}
}

// String returns "lofamo1.ID.SECRET.PIN". It is a secret.
func (t JoinToken) String() string {
	return strings.Join([]string{tokenVersion, t.ID, t.Secret, tokenText.EncodeToString(t.Pin[:])}, ".")
}

// ParseJoinToken reads a token as String prints it. Its errors do not quote the secret.
func ParseJoinToken(s string) (JoinToken, error) {
	bad := func(what string) (JoinToken, error) {
		return JoinToken{}, fmt.Errorf("token: %s: want %s.ID.SECRET.PIN, as 'lofamoctl token create' prints it", what, tokenVersion)
	}
	if len(s) > MaxTokenText {
		return bad(fmt.Sprintf("%d bytes", len(s)))
	}
	parts := strings.Split(s, ".")
	if len(parts) != 4 || parts[0] != tokenVersion {
		return bad("not a token of this kind")
	}
	for i, n := range map[int]int{1: tokenIDBytes, 2: tokenSecretBytes, 3: sha256.Size} {
		b, err := tokenText.DecodeString(parts[i])
		if err != nil || len(b) != n || tokenText.EncodeToString(b) != parts[i] { // one spelling only
			return bad("part " + []string{"", "ID", "SECRET", "PIN"}[i] + " is damaged")
		}
	}
	t := JoinToken{ID: parts[1], Secret: parts[2]}
	pin, _ := tokenText.DecodeString(parts[3]) // checked above
	copy(t.Pin[:], pin)
	return t, nil
}

// Sum returns the checksum that supervisors store in place of the secret, so that a reader of the store cannot use it.
func (t JoinToken) Sum() [32]byte { return sha256.Sum256([]byte(t.ID + "." + t.Secret)) }

// Is reports whether sum is the token's checksum, in the same time for every sum.
func (t JoinToken) Is(sum []byte) bool {
	own := t.Sum()
	return subtle.ConstantTimeCompare(own[:], sum) == 1
}
