// Checkpoints written by tests: a folder of their own, safetensors files byte by byte, and a tiny
// Llama whose weights come from a seed.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/half.h"

namespace fuseblock::testing {

// A folder that goes with its owner.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "fuseblock_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Writes the file and gives its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(File(name), std::ios::binary) << bytes;
    return File(name);
  }

 private:
  std::string path_;
};

// A safetensors file of this header and data: the length is the header's, whatever it says.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  const uint64_t length = header.size();
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out + header + data;
}

// A tensor to be written.
struct FileTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A well-formed file of the tensors in the order given.
inline std::string SafetensorsBytes(const std::vector<FileTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const FileTensor& tensor : tensors) {
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", tensor.name, "\":{\"dtype\":\"",
                    tensor.dtype, "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                    "],\"data_offsets\":[", data.size(), ",", data.size() + tensor.bytes.size(),
                    "]}");
    data += tensor.bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return SafetensorsBytes(header, data);
}

// Values as the dtype's bytes.
inline std::string EncodeValues(const std::vector<float>& values, DType dtype) {
  std::string out;
  VisitFloat(dtype, [&](auto type) {
    for (float value : values) {
      const auto encoded = FromFloat<decltype(type)>(value);
      out.append(reinterpret_cast<const char*>(&encoded), sizeof(encoded));
    }
  });
  return out;
}

// The shape of a tiny Llama.
struct TinyLlama {
  std::string model_type = "llama";
  int64_t hidden = 8, intermediate = 12, vocabulary = 10, layers = 2;
  bool mlp_bias = false;
  std::string base = "model.";  // the tensors' base prefix
  DType dtype = DType::kF32;    // of the file
  float eps = 1e-5f;
  uint32_t seed = 1;

  // fields: more of them, beginning with a comma.
  std::string Config(const std::string& fields = "") const {
    return absl::StrCat("{\"model_type\":\"", model_type, "\",\"hidden_size\":", hidden,
                        ",\"intermediate_size\":", intermediate, ",\"vocab_size\":", vocabulary,
                        ",\"num_hidden_layers\":", layers, ",\"rms_norm_eps\":", eps,
                        ",\"hidden_act\":\"silu\",\"mlp_bias\":", mlp_bias ? "true" : "false",
                        fields, "}");
  }

  // Seeded weights that every float dtype holds exactly: multiples of 1/16 below 1.
  std::vector<FileTensor> Tensors() const {
    std::mt19937 random(seed);
    std::vector<FileTensor> out;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      int64_t count = 1;
      for (int64_t extent : shape) count *= extent;
      std::vector<float> values(static_cast<size_t>(count));
      for (float& value : values)
        value = static_cast<float>(static_cast<int>(random() % 31) - 15) / 16;
      out.push_back({base + name, std::string(Traits(dtype).safetensors), std::move(shape),
                     EncodeValues(values, dtype)});
    };
    add("embed_tokens.weight", {vocabulary, hidden});
    for (int64_t i = 0; i < layers; ++i) {
      const std::string prefix = absl::StrCat("layers.", i, ".");
      add(prefix + "input_layernorm.weight", {hidden});
      add(prefix + "post_attention_layernorm.weight", {hidden});
      add(prefix + "self_attn.q_proj.weight", {hidden, hidden});
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = name[0] == 'd';
        const int64_t out_size = down ? hidden : intermediate;
        add(absl::StrCat(prefix, "mlp.", name, ".weight"),
            {out_size, down ? intermediate : hidden});
        if (mlp_bias) add(absl::StrCat(prefix, "mlp.", name, ".bias"), {out_size});
      }
    }
    add("norm.weight", {hidden});
    return out;
  }

  // config.json and model.safetensors.
  void Write(const TempFolder& folder) const {
    folder.Write("config.json", Config());
    folder.Write("model.safetensors", SafetensorsBytes(Tensors()));
  }
};

// The values of a tensor of `tensors`, whatever its dtype.
inline std::vector<float> ValuesOf(const std::vector<FileTensor>& tensors,
                                   const std::string& name) {
  std::vector<float> out;
  for (const FileTensor& tensor : tensors) {
    if (tensor.name != name) continue;
    VisitFloat(*DTypeFromSafetensors(tensor.dtype), [&](auto type) {
      for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(type)) {
        std::memcpy(&type, tensor.bytes.data() + at, sizeof(type));
        out.push_back(ToFloat(type));
      }
    });
  }
  return out;
}

}  // namespace fuseblock::testing
