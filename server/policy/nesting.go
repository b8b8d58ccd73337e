package policy

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

const (
	// maxSource bounds one definition.
	maxSource = 64 << 10
	// maxNesting bounds brackets, templates, signs and conditions that a parser
	// and an evaluator would follow by recursion: without it, a file of opening
	// brackets overflow the stack and end the process.
	maxNesting = 100
)

// bounded refuses a source whose size or nesting the HCL parser must not see.
func (r *reader) bounded(filename string, src []byte) bool {
	at := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(src) > maxSource {
		r.refuse(at, "it has %d bytes; a definition has at most %d", len(src), maxSource)
		return false
	}
	// What the lexer complains about, the parser will say better.
	tokens, _ := hclsyntax.LexConfig(src, filename, hcl.InitialPos)
	depth, signs, conditions := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen,
			hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen,
			hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
			depth--
		case hclsyntax.TokenQuestion:
			conditions++
		}
		if t.Type == hclsyntax.TokenMinus || t.Type == hclsyntax.TokenBang {
			signs++
		} else {
			signs = 0
		}
		if depth > maxNesting || signs > maxNesting || conditions > maxNesting {
			r.refuse(t.Range, "it is nested deeper than %d here", maxNesting)
			return false
		}
	}
	return true
}
