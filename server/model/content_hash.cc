// A weight's digest is the hash of its chunks' hashes, so that chunks are hashed side by side.
#include "server/model/content_hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/model/checkpoint.h"

namespace fuseblock {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;

std::array<std::byte, 32> Sha256(const void* data, size_t bytes) {
  std::array<std::byte, 32> digest{};
  EVP_Digest(data, bytes, reinterpret_cast<unsigned char*>(digest.data()), nullptr, EVP_sha256(),
             nullptr);
  return digest;
}

// Every field of the spec, in a form that differs whenever the arithmetic may. %a is exact.
std::string SpecText(const BlockSpec& spec) {
  return absl::StrFormat(
      "kind=%s dtype=%s hidden=%d intermediate=%d vocabulary=%d eps=%a weight_offset=%a "
      "norm_form=%d activation=%d%s rounding=%d embedding_scale=%a\n",
      std::string(Name(spec.kind)), std::string(Name(spec.dtype)), spec.hidden, spec.intermediate,
      spec.vocabulary, spec.norm.eps, spec.norm.weight_offset, static_cast<int>(spec.norm.form),
      static_cast<int>(spec.activation), spec.gated ? "" : " gated=0",
      static_cast<int>(spec.rounding), spec.embedding_scale);
}

}  // namespace

const ContentHasher::Digest& ContentHasher::DigestOf(const ConstTensorView& view) {
  const absl::Span<const std::byte> bytes = TensorBytes(view);
  const auto [it, inserted] = digests_.try_emplace({bytes.data(), bytes.size()});
  if (!inserted) return it->second;
  const size_t chunks = (bytes.size() + kChunkBytes - 1) / kChunkBytes;
  std::vector<Digest> parts(chunks);
  parallel_for_(static_cast<int64_t>(chunks), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kChunkBytes;
    parts[static_cast<size_t>(i)] =
        Sha256(bytes.data() + begin, std::min(kChunkBytes, bytes.size() - begin));
  });
  it->second = Sha256(parts.data(), parts.size() * sizeof(Digest));
  return it->second;
}

std::string ContentHasher::Hash(const BlockSpec& spec, const BlockWeights& weights) {
  std::string text = SpecText(spec);
  ForEachWeight(weights, [&](const char* role, const ConstTensorView& view) {
    const Digest& digest = DigestOf(view);
    absl::StrAppend(&text, role, " ", std::string(Name(view.dtype)), " [",
                    absl::StrJoin(view.dims(), ","), "] ");
    text.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  });
  const Digest whole = Sha256(text.data(), text.size());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(whole.data()), whole.size()));
}

}  // namespace fuseblock
