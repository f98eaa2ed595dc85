package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// KeyType is the algorithm of a key. The zero value is none.
type KeyType string

// The types of keys.
const (
	// KeyEd25519 has short keys and signatures. Halves and replicas sign messages with it. In TLS, BoringSSL refuses
	// it, and so do browsers and most gRPC clients outside Go.
	KeyEd25519 KeyType = "ed25519"
	// KeyECDSA is ECDSA with P-256 and SHA-256, which every TLS library accepts.
	KeyECDSA KeyType = "ecdsa"
)

// KeyTypes lists the types of keys.
func KeyTypes() []KeyType { return []KeyType{KeyECDSA, KeyEd25519} }

// Validate rejects an unknown type.
func (k KeyType) Validate() error {
	if !slices.Contains(KeyTypes(), k) {
		return fmt.Errorf("key type: given %q: want one of %s", string(k), fault.List(KeyTypes()))
	}
	return nil
}

// name returns the type as errors name it.
func (k KeyType) name() string {
	switch k {
	case KeyEd25519:
		return "Ed25519"
	case KeyECDSA:
		return "ECDSA P-256"
	}
	return string(k)
}

// names joins the names of types.
func names(types []KeyType) string {
	var out []string
	for _, k := range types {
		out = append(out, k.name())
	}
	return strings.Join(out, " or ")
}

// nameOf returns the type of a public key as errors name it, with the curve of an ECDSA key.
func nameOf(key crypto.PublicKey) string {
	if k := typeOf(key); k != "" {
		return k.name()
	}
	if key, ok := key.(*ecdsa.PublicKey); ok && key.Curve != nil {
		return "ECDSA " + key.Curve.Params().Name
	}
	return fmt.Sprintf("%T", key)
}

// generate makes a key.
func (k KeyType) generate() (crypto.Signer, error) {
	switch k {
	case KeyEd25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	case KeyECDSA:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	return nil, k.Validate()
}

// typeOf returns the type of a public key; "" for a type that certificates of this package do not have.
func typeOf(key crypto.PublicKey) KeyType {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return KeyEd25519
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			return KeyECDSA
		}
	}
	return ""
}

// belongs reports whether a private key is that of a certificate.
func belongs(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// sign returns the signature over a message: 64 bytes with Ed25519, about 70 in ASN.1 with ECDSA.
func sign(key crypto.Signer, message []byte) []byte {
	switch key := key.(type) {
	case ed25519.PrivateKey:
		return ed25519.Sign(key, message)
	case *ecdsa.PrivateKey:
		sum := sha256.Sum256(message)
		sig, _ := ecdsa.SignASN1(rand.Reader, key, sum[:]) // fails only without randomness, which ends the program
		return sig
	}
	return nil
}

// signed reports whether sig is a key's signature over a message.
func signed(key crypto.PublicKey, message, sig []byte) bool {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return len(sig) == ed25519.SignatureSize && ed25519.Verify(key, message, sig)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(key, sum[:], sig)
	}
	return false
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// readKey reads a key of either type.
func readKey(file string) (crypto.Signer, error) {
	der, err := readPEM("key", file, pemKey)
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	key, ok := k.(crypto.Signer)
	want := []KeyType{KeyEd25519, KeyECDSA}
	if !ok {
		return nil, fmt.Errorf("key %s: of type %T: want %s", file, k, names(want))
	}
	if typeOf(key.Public()) == "" {
		return nil, fmt.Errorf("key %s: of type %s: want %s", file, nameOf(key.Public()), names(want))
	}
	return key, nil
}

// KeyTypeOf returns the type of a certificate's key, and that of the key that signed the certificate.
func KeyTypeOf(certFile string) (own, signer KeyType, err error) {
	cert, err := readCert(certFile)
	if err != nil {
		return "", "", err
	}
	signer = map[x509.SignatureAlgorithm]KeyType{x509.PureEd25519: KeyEd25519, x509.ECDSAWithSHA256: KeyECDSA}[cert.SignatureAlgorithm]
	return typeOf(cert.PublicKey), signer, nil
}
